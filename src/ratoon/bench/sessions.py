"""Made-up sessions of a coding agent, in the shape of the real client's traffic.

Each function gives recorded requests, one dict of ``t``, ``path``, ``headers`` and ``body`` each;
``write`` makes a trace of them that ``ratoon bench replay`` reads. All wording is drawn from
``seed``, so equal arguments give equal requests and other seeds share next to no text.
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

Record = dict[str, Any]

PATH = "/v1/messages?beta=true"
ROUND_S = 1.0
BURST_S = 0.03  # between siblings that start together

_EPHEMERAL = {"type": "ephemeral"}
_VOCABULARY = """
    amber anchor apple arrow autumn barley basket bell birch blanket boat bottle branch bread
    bridge brook butter candle canvas carpet castle cedar chalk cherry circle clay clock cloud
    coast copper corner cotton cradle creek curtain desert dinner donkey dragon drum eagle ember
    engine falcon feather fence field finger flame flour forest fountain frost garden garlic
    ginger glass glove grain grape gravel hammer harbor harvest hazel hill honey horse island
    ivory jacket juniper kettle kitchen ladder lantern lemon linen maple marble meadow mirror
    morning mountain needle oak ocean olive orchard paper pebble pepper pilot plate pocket pond
    powder quarry rabbit ribbon river saddle sailor shadow silver spoon stable summer table
    thunder timber tunnel valley velvet village violin wagon walnut whistle window winter wolf
"""
_WORDS = _VOCABULARY.split()
# what an agent of each kind may call, in the client's order; the last is loaded later
_MAIN_TOOLS = ("Delegate", "Look", "Patch", "Run", "Write", "Later")
_SUB_TOOLS = ("Look", "Patch", "Run", "Later")
_LATER = "Later"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Lengths of texts in words, of about one and a half tokens each."""

    prompt: int = 110
    sub_prompt: int = 70
    tool: int = 8
    context: int = 20
    task: int = 14
    late_run: int = 70
    note: int = 16
    result: int = 24
    directive: int = 30

    def scaled(self, scale: float) -> Sizes:
        """All longer or shorter by a factor."""
        return Sizes(*(max(1, round(scale * n)) for n in astuple(self)))

    def with_long_prompts(self, factor: int) -> Sizes:
        """Longer in what every request begins with: system prompt, tools, context."""
        begins = ("prompt", "sub_prompt", "tool", "context")
        return replace(self, **{name: factor * getattr(self, name) for name in begins})


def coding(rounds: int, *, seed: int = 0, sizes: Sizes | None = None) -> list[Record]:
    """One agent that calls tools; its last request follows ``rounds`` rounds of calls."""
    agent = Session(seed, sizes or Sizes()).main()
    return [agent.ask(), *work(agent, rounds)]


def continued(rounds: int, more: int, *, seed: int = 0, sizes: Sizes | None = None) -> list[Record]:
    """``coding(rounds)`` resumed with another prompt, for ``more`` rounds; only what is new."""
    agent = Session(seed, sizes or Sizes()).main()
    work(agent, rounds)
    agent.t_s += 60.0
    agent.resume()
    return [agent.ask(), *work(agent, more)]


def fan_out(
    siblings: int, rounds: int, *, seed: int = 0, sizes: Sizes | None = None
) -> list[Record]:
    """A main agent that starts sub-agents side by side, waits for them and goes on.

    Each sub-agent works ``rounds`` rounds; all keep step.
    """
    session = Session(seed, sizes or Sizes())
    main = session.main()
    records = [main.ask()]
    children = [session.sub(n) for n in range(siblings)]
    for n, child in enumerate(children):
        child.t_s = ROUND_S + n * BURST_S
    records += [child.ask() for child in children]
    for _ in range(rounds):
        records += [record for child in children for record in work(child, 1)]
    main.t_s = (rounds + 1) * ROUND_S
    main.call(["Delegate"] * siblings)
    return [*records, main.ask(), *work(main, 1)]


def siblings_of(records: Sequence[Record]) -> list[Record]:
    """The first request of each sub-agent."""
    first: dict[str, Record] = {}
    for record in records:
        if agent := record["headers"].get("x-claude-code-agent-id"):
            first.setdefault(agent, record)
    return list(first.values())


def with_new_suffixes(records: Sequence[Record]) -> list[Record]:
    """The same requests, each with a suffix of its own in the billing line."""
    changed = [copy.deepcopy(record) for record in records]
    for n, record in enumerate(changed):
        block = record["body"]["system"][0]
        version, _, rest = block["text"].partition("; ")
        block["text"] = f"{version.rpartition('.')[0]}.{n:03x}; {rest}"
    return changed


def write(records: Sequence[Record], file: Path) -> Path:
    """Store the requests as a trace."""
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


@dataclass(slots=True)
class Dialogue:
    """One conversation. ``messages`` are kept as lists of bare blocks; ``ask`` sends them in the
    client's form."""

    seed: int
    sizes: Sizes
    headers: dict[str, str]
    system: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    name: str
    repo: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    t_s: float = 0.0
    n_calls: int = 0

    def prose(self, label: str, n_words: int) -> str:
        """Text of this agent's own."""
        return prose(self.seed, f"{self.name}/{label}", n_words)

    def turn(self, role: str, *blocks: dict[str, Any]) -> None:
        self.messages.append({"role": role, "content": list(blocks)})

    def call(self, names: Sequence[str], says: str = "") -> None:
        """A round: the assistant's calls, and their results in the order of completion."""
        calls = [self._call(name) for name in names]
        results = [self._result(call["id"]) for call in reversed(calls)]
        self.turn("assistant", *([_text(says)] if says else []), *calls)
        self.turn("user", *results)

    def _call(self, name: str) -> dict[str, Any]:
        self.n_calls += 1
        given = {"target": self.prose(f"target {self.n_calls}", 2), "limit": self.n_calls}
        id = f"toolu_{_hex(self.seed, self.name, str(self.n_calls))}"
        return {"type": "tool_use", "id": id, "name": name, "input": given}

    def _result(self, call_id: str) -> dict[str, Any]:
        text = self.prose(f"result {call_id}", self.sizes.result)
        return {"type": "tool_result", "tool_use_id": call_id, "content": text}

    def resume(self, n: int = 0) -> None:
        """The last reply, and what the user says when the session is taken up again."""
        suffix = f" {n}" if n else ""
        self.turn("assistant", _text(self.prose(f"goodbye{suffix}", self.sizes.note)))
        self.turn("user", _text(self.prose(f"resume{suffix}", self.sizes.task)))

    def fork(self, name: str, n_words: int) -> Dialogue:
        """A sub-agent that knows all that was said: the call that started it and what it is to do
        are all it has of its own."""
        headers = {**self.headers, "x-claude-code-agent-id": _hex(self.seed, name)}
        fork = replace(self, name=name, headers=headers, messages=copy.deepcopy(self.messages))
        call = fork._call("Delegate")
        started = {"type": "tool_result", "tool_use_id": call["id"], "content": "Started."}
        fork.turn("assistant", call)
        fork.turn("user", started, _text(fork.prose("directive", n_words)))
        return fork

    def aside(self, n_words: int) -> Record:
        """A small call beside the work: a title, a summary. It has no tools and another prompt."""
        asked = _text(self.prose(f"aside {len(self.messages)}", n_words))
        system = [self.system[0], _text(prose(self.repo, "aside", self.sizes.note))]
        messages = [{"role": "user", "content": [asked]}]
        body = {"model": "local", "messages": messages, "system": system, "max_tokens": 32}
        return self._record({**body, "stream": True})

    def ask(self) -> Record:
        """The request that the client sends now."""
        body = {
            "model": "local",
            "messages": _as_sent(self.messages),
            "system": self.system,
            "tools": self.tools,
            "metadata": {"user_id": _hex(self.seed, "user")},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive", "display": "updates"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "high"},
            "stream": True,
        }
        return self._record(body)

    def _record(self, body: dict[str, Any]) -> Record:
        return {"t": round(self.t_s, 3), "path": PATH, "headers": self.headers, "body": body}


class Session:
    """What all agents of one session have in common.

    Sessions of one ``repo`` have prompts, tools and notes on the repository in common; by default
    each has a repository of its own. ``defers``: one tool is to be loaded only when looked for.
    """

    def __init__(
        self, seed: int, sizes: Sizes, *, repo: int | None = None, defers: bool = True
    ) -> None:
        self.seed = seed
        self.sizes = sizes
        self.repo = seed if repo is None else repo
        self.defers = defers

    def main(self) -> Dialogue:
        """The agent that the user talks to."""
        return self._agent("main", "main", _MAIN_TOOLS, self.sizes.prompt)

    def sub(self, n: int | str) -> Dialogue:
        """A sub-agent that begins with a task alone."""
        return self._agent("sub", f"sub {n}", _SUB_TOOLS, self.sizes.sub_prompt)

    def _agent(self, kind: str, name: str, tools: Sequence[str], n_words: int) -> Dialogue:
        """``kind`` names what agents share, ``name`` what is one agent's own."""
        sizes = self.sizes
        task = prose(self.seed, f"{name}/task", sizes.task)
        system = [
            _text(_billing(task, is_sub=kind == "sub")),
            _text(self._prose(kind, "identity", 9)) | {"cache_control": _EPHEMERAL},
            _text(self._prose(kind, "prompt", n_words)) | {"cache_control": _EPHEMERAL},
        ]
        headers = {
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "interleaved-thinking-2025-05-14",
            "x-claude-code-session-id": _hex(self.seed, "session"),
        }
        if kind == "sub":
            headers["x-claude-code-agent-id"] = _hex(self.seed, name)
        definitions = [self._tool(tool) for tool in tools if self.defers or tool != _LATER]
        agent = Dialogue(self.seed, sizes, headers, system, definitions, name, self.repo)
        context = [self._reminder(label) for label in ("rules", "state", "credits")]
        agent.turn("user", *context, _text(task))
        agent.turn("system", _text(self._prose(kind, "late run", sizes.late_run)))
        return agent

    def _prose(self, kind: str, label: str, n_words: int) -> str:
        return prose(self.repo, f"{kind}/{label}", n_words)

    def _reminder(self, label: str) -> dict[str, Any]:
        text = self._prose("shared", label, self.sizes.context)
        return _text(f"<system-reminder>\n{text}\n</system-reminder>")

    def _tool(self, name: str) -> dict[str, Any]:
        text = self._prose("tool", name, self.sizes.tool)
        schema = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "target": {"type": "string", "description": self._prose("tool", f"{name} to", 4)},
                "limit": {"type": "number"},
            },
            "required": ["target"],
            "additionalProperties": False,
        }
        tool = {"name": name, "description": text, "input_schema": schema}
        return tool | {"defer_loading": True} if name == _LATER else tool


def work(agent: Dialogue, rounds: int) -> list[Record]:
    """Rounds of calls, and the request after each; now and then several calls, words or a note."""
    records = []
    for _ in range(rounds):
        n = len(agent.messages)
        agent.t_s += ROUND_S
        names = ["Look", "Run", "Patch"][: 3 if n % 8 == 6 else 1]
        agent.call(names, says=agent.prose(f"says {n}", 6) if n % 4 == 2 else "")
        if n % 6 == 2:
            # a note of the client's: the same for all agents of a session
            agent.turn("system", _text(prose(agent.seed, f"note {n}", agent.sizes.note)))
        records.append(agent.ask())
    return records


def _as_sent(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The client's form: the last block is marked; elsewhere a lone text is a plain string."""
    sent = copy.deepcopy(list(messages))
    for message in sent[:-1]:
        blocks = message["content"]
        if message["role"] != "assistant" and len(blocks) == 1 and blocks[0]["type"] == "text":
            message["content"] = blocks[0]["text"]
    sent[-1]["content"][-1]["cache_control"] = _EPHEMERAL
    return sent


def _billing(task: str, *, is_sub: bool) -> str:
    suffix = hashlib.sha256(task.encode()).hexdigest()[:3]
    sub = " cc_is_subagent=true;" * is_sub
    return f"x-anthropic-billing-header: cc_version=1.0.0.{suffix}; cc_entrypoint=cli;{sub}"


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def prose(seed: int, label: str, n_words: int) -> str:
    """Sentences of ``n_words`` words in all: the same for the same label."""
    rng = random.Random(f"{seed}/{label}")
    words = [rng.choice(_WORDS) for _ in range(n_words)]
    sentences = [" ".join(words[i : i + 9]).capitalize() for i in range(0, n_words, 9)]
    return ". ".join(sentences) + "."


def _hex(seed: int, *labels: str) -> str:
    return hashlib.sha256(f"{seed}/{'/'.join(labels)}".encode()).hexdigest()[:16]

"""A session with tools over HTTP, whose client rewrites what it echoes: nothing is computed twice.

The replies are given to the engine, so that they hold what a model may write and no template would.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message

from ratoon.bench.suite import TOOL_TEMPLATE
from ratoon.config import Settings
from ratoon.disk.records import FILE, Records
from ratoon.engine.request import Request
from tests.model.live import Live, live

pytestmark = pytest.mark.model

TOOLS = [
    {
        "name": "Bash",
        "description": "Runs a command",
        "input_schema": {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout": {"type": "number"},
                "run_in_background": {"type": "boolean", "default": False},
            },
            "required": ["command"],
        },
    },
    {
        "name": "Write",
        "description": "Writes a file",
        "input_schema": {
            "type": "object",
            "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}},
            "required": ["file_path", "content"],
        },
    },
]


def call(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


class Script:
    """Says what it is told next, in tokens that no tokenizer would choose for it."""

    def __init__(self, server: Live) -> None:
        self.path: list[int] = []  # the tokens of the last prompt and reply
        self._vocab = server.engine.model.vocab
        self._next: list[int] = []
        server.engine.forced_tokens = self._forced

    def say(self, text: str, *, is_cut: bool = False) -> int:
        """Prepare a reply; gives its length in tokens. One that is cut off has no end."""
        pieces = [text[n : n + 3] for n in range(0, len(text), 3)]
        self._next = [token for piece in pieces for token in self._vocab.tokenize(piece)]
        n_tokens = len(self._next)
        if not is_cut:
            assert self._vocab.eos_id is not None
            self._next.append(self._vocab.eos_id)
        return n_tokens

    def _forced(self, request: Request) -> list[int]:
        self.path = [*request.prompt, *self._next]
        return self._next


class Agent:
    """A client with one conversation. ``n_known``: tokens of its last prompt and reply."""

    def __init__(self, url: str, script: Script, opening: str) -> None:
        self.script = script
        self.messages: list[dict[str, Any]] = [{"role": "user", "content": opening}]
        self.n_known = 0
        self._url = url

    def move(self, server: Live) -> None:
        """Go on with the conversation on another server."""
        self._url, self.script = server.url, Script(server)

    def ask(self, reply: str, *, is_cut: bool = False, streams: bool = True) -> Message:
        """Send the conversation; ``reply`` is what the model will say."""
        n_tokens = self.script.say(reply, is_cut=is_cut)
        body: Any = {
            "model": "local",
            "max_tokens": n_tokens if is_cut else 1000,
            "system": "You are an agent.",
            "tools": TOOLS,
            "messages": self.messages,
        }
        with anthropic.Anthropic(
            base_url=self._url, api_key="any", max_retries=0, timeout=120
        ) as client:
            if streams:
                with client.messages.stream(**body) as stream:
                    message = stream.get_final_message()
            else:
                message = client.messages.create(**body)
        assert message.usage.output_tokens == n_tokens
        self.n_known = n_prompt(message) + n_tokens
        return message

    def echo(self, *blocks: dict[str, Any]) -> None:
        self.messages.append({"role": "assistant", "content": list(blocks)})

    def results(self, *ids: str) -> None:
        blocks = [
            {"type": "tool_result", "tool_use_id": id, "content": f"done {n}"}
            for n, id in enumerate(ids)
        ]
        self.messages.append({"role": "user", "content": blocks})


def n_read(message: Message) -> int:
    return message.usage.cache_read_input_tokens or 0


def n_prompt(message: Message) -> int:
    return message.usage.input_tokens + n_read(message)


def text(body: str) -> dict[str, Any]:
    return {"type": "text", "text": body}


def tool_use(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def ids(message: Message) -> list[str]:
    return [block.id for block in message.content if block.type == "tool_use"]


@pytest.fixture(scope="module")
def server(cut4_path: Path) -> Iterator[Live]:
    with live(Settings(model=str(cut4_path), n_ctx=2048, n_seq=8)) as running:
        yield running


@pytest.fixture
def script(server: Live) -> Script:
    return Script(server)


def replays(server: Live) -> dict[str, float]:
    """How often each outcome was counted so far."""
    page = httpx.get(f"{server.url}/metrics").text
    lines = [line for line in page.splitlines() if line.startswith("ratoon_replays_total{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


ODD_CALL = call(
    ' {"arguments":{ "timeout" :"5000",\n\n"command": "cd /work \\u0026\\u0026 ls"} ,'
    ' "name":"Bash"}\n'
)
WRITE_CALL = call(
    '{"name": "Write", "arguments": {"content": "caf\\u00e9  \\n\\tx \\n", "file_path": "a.py"}}'
)


def test_a_session_with_rewritten_echoes_computes_only_what_is_new() -> None:
    with live(Settings(chat_template=TOOL_TEMPLATE, n_ctx=2048, n_seq=8)) as server:
        play_session(Agent(server.url, Script(server), "List the files."))


def play_session(agent: Agent) -> None:
    first = agent.ask(f"I look.\n{ODD_CALL}")
    assert [block.type for block in first.content] == ["text", "tool_use"]
    (id,) = ids(first)
    agent.echo(
        text("I look."),
        tool_use(id, "Bash", run_in_background=False, command="ls", timeout=5000),
    )
    agent.results(id)

    known = agent.n_known
    second = agent.ask(f"{WRITE_CALL}\n\n{WRITE_CALL}And now?", streams=False)
    assert n_read(second) == known
    one, other = ids(second)
    rewritten = {"file_path": "a.py", "content": "café\n\tx\n"}
    agent.echo(
        text("And now?"),  # it came last
        tool_use(one, "Write", **rewritten),
        tool_use(other, "Write", **rewritten),
    )
    agent.results(other, one)  # in the order they ended

    known = agent.n_known
    cut = '<tool_call>{"name": "Bash", "arguments": {"command": "echo '
    third = agent.ask(cut, is_cut=True)
    assert third.stop_reason == "max_tokens"
    assert n_read(third) == known
    (id,) = ids(third)
    raw = '{"command": "echo '
    unparsed = {"raw": raw, "len": len(raw)}
    agent.echo(tool_use(id, "Bash", __unparsedToolInput=unparsed))
    agent.results(id)

    known = agent.n_known
    fourth = agent.ask("  Done, I think.\n")
    # Nobody asked what follows the last token of a reply that was cut off.
    assert n_read(fourth) == known - 1
    agent.echo(text("  Done, I think.\n"))
    agent.messages.append({"role": "user", "content": "Thank you."})

    known = agent.n_known
    assert n_read(agent.ask("Bye.")) == known


def test_an_edited_echo_is_taken_as_it_came(server: Live, script: Script) -> None:
    agent = Agent(server.url, script, "What is the time?")
    first = agent.ask(ODD_CALL)
    (id,) = ids(first)
    agent.echo(tool_use(id, "Bash", command="ls -a", timeout=5000))
    agent.results(id)
    before, known = replays(server), agent.n_known
    second = agent.ask("So late?")
    assert n_read(second) < known
    assert n_read(second) >= n_prompt(first) - 1
    assert replays(server)["different"] == before.get("different", 0) + 1
    agent.echo(text("So late?"))
    agent.messages.append({"role": "user", "content": "Yes."})
    known = agent.n_known
    assert n_read(agent.ask("Oh.")) == known, "what was sampled after the edit is put back"


def test_forks_share_the_reply(server: Live, script: Script) -> None:
    agent = Agent(server.url, script, "Count the files.")
    (id,) = ids(agent.ask(ODD_CALL))
    agent.echo(tool_use(id, "Bash", command="ls", timeout=5000))
    agent.results(id)
    known, history = agent.n_known, list(agent.messages)
    for branch in ("One way.", "Another way.", "A third one."):
        agent.messages = [*history, {"role": "user", "content": branch}]
        reply = agent.ask(f"Taken: {branch}")
        assert n_read(reply) >= known


def test_a_compacted_conversation_goes_on(server: Live, script: Script) -> None:
    agent = Agent(server.url, script, "Do the work.")
    (id,) = ids(agent.ask(f"I start.{ODD_CALL}"))
    echo = [text("I start."), tool_use(id, "Bash", command="ls", timeout=5000)]
    summary = {"role": "user", "content": "Summary: the work is half done."}
    agent.messages = [summary]
    agent.echo(*echo)
    agent.results(id)
    before = replays(server)
    agent.ask("I go on.")
    assert replays(server)["elsewhere"] == before.get("elsewhere", 0) + 1
    agent.echo(text("I go on."))
    agent.messages.append({"role": "user", "content": "Good."})
    known = agent.n_known
    assert n_read(agent.ask("Done.")) == known


def test_replies_are_kept_as_long_as_their_states(cut4_path: Path) -> None:
    settings = Settings(model=str(cut4_path), n_ctx=512, n_seq=2, host_bytes=1)
    with live(settings) as server:
        script = Script(server)
        assert server.replies is not None
        for n in range(6):
            Agent(server.url, script, f"{n} is a number").ask(f"Yes, {n} is.")
            assert 1 <= len(server.replies) <= 3
            assert server.replies.n_bytes <= server.replies.max_bytes


def begun(server: Live) -> Agent:
    """A conversation with two replies, both echoed in other words than they were said."""
    agent = Agent(server.url, Script(server), "List the files.")
    (id,) = ids(agent.ask(f"I look.\n{ODD_CALL}"))
    agent.echo(text("I look."), tool_use(id, "Bash", command="ls", timeout=5000))
    agent.results(id)
    agent.ask(" Two files.\n")
    agent.echo(text(" Two files.\n"))
    agent.messages.append({"role": "user", "content": "Thank you."})
    return agent


def test_a_new_server_puts_back_what_an_earlier_one_said(cut1_path: Path, tmp_path: Path) -> None:
    settings = Settings(model=str(cut1_path), n_ctx=1024, cache_dir=tmp_path / "states")
    with live(settings) as server:
        agent = begun(server)
        path = agent.script.path[:-1]  # the template ends the turn itself
    with live(settings) as server:
        assert server.replies is not None
        assert len(server.replies) == 2
        agent.move(server)
        known = agent.n_known
        assert n_read(agent.ask("Bye.")) == known, "the state is there, and the prompt extends it"
        assert replays(server) == {"replayed": 2}
        assert agent.script.path[: len(path)] == path
        agent.echo(text("Bye."))
        agent.messages.append({"role": "user", "content": "One more."})
        agent.ask("No.")
        assert replays(server) == {"replayed": 5}
    with live(settings) as server:
        assert server.replies is not None
        assert len(server.replies) == 4


def test_a_server_that_reads_tokens_otherwise_does_not(
    cut1_path: Path, cut4_path: Path, tmp_path: Path
) -> None:
    settings = Settings(model=str(cut1_path), n_ctx=1024, cache_dir=tmp_path)
    template = tmp_path / "other.jinja"
    template.write_text(
        TOOL_TEMPLATE.read_text(encoding="utf-8") + "{# another #}", encoding="utf-8"
    )
    with live(settings) as server:
        agent = begun(server)
    for change in (
        {"model": str(cut4_path)},
        {"chat_template": template},
        {"tool_dialect": "llama3"},
        {"disk_bytes": 0},
    ):
        with live(settings.model_copy(update=change)) as server:
            assert server.replies is not None
            assert len(server.replies) == 0, change
    with live(settings) as server:
        agent.move(server)
        agent.ask("Bye.")
        assert replays(server) == {"replayed": 2}


@contextmanager
def serving(*flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``ratoon serve`` in a process of its own, and its address."""
    command = [sys.executable, "-m", "ratoon", "serve", "--port", "0", *flags]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            found = next(filter(None, (re.search(r"http://[\d.]+:\d+", line) for line in lines)))
            yield process, found[0]
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_server_that_ends_leaves_its_replies(
    cut1_path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    flags = ("--model", str(cut1_path), "--n-ctx", "1024", "--cache-dir", str(tmp_path))
    records = Records(tmp_path)
    body = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
    with serving(*flags) as (process, url):
        assert httpx.post(f"{url}/v1/messages", json=body, timeout=120).status_code == 200
        deadline = time.monotonic() + 60
        while number == signal.SIGKILL and records.total()[0] == 0:  # it is still on its way
            assert time.monotonic() < deadline
            time.sleep(0.01)
        records.close()
        process.send_signal(number)
        assert process.wait(60) == (-number if number == signal.SIGKILL else 0)
    is_closed = not (tmp_path / f"{FILE}-wal").exists()
    assert is_closed == (number != signal.SIGKILL)
    assert records.check() == (1, [])


@pytest.mark.parametrize("change", [{"disk_bytes": 0}, {"replay": False}, {"model": "dummy"}])
def test_nothing_is_kept_where_nothing_is_asked_for(
    cut1_path: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    settings = Settings(model=str(cut1_path), n_ctx=1024, cache_dir=tmp_path / "states")
    with live(settings.model_copy(update=change)) as server:
        if "model" not in change:
            begun(server)
    assert list(tmp_path.glob("states/records*")) == []


def test_without_replay_the_clients_words_count(cut4_path: Path) -> None:
    with live(Settings(model=str(cut4_path), n_ctx=1024, replay=False)) as server:
        agent = Agent(server.url, Script(server), "List the files.")
        (id,) = ids(agent.ask(ODD_CALL))
        agent.echo(tool_use(id, "Bash", command="ls", timeout=5000))
        agent.results(id)
        known = agent.n_known
        assert n_read(agent.ask("Done.")) < known
        assert replays(server) == {}

"""From a request to its prompt: tokens, and the offsets where a saved state pays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ratoon import wire
from ratoon.chat import tools
from ratoon.chat.arrange import arrange
from ratoon.chat.convert import SEPARATOR, Converter, Entry
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Tools
from ratoon.chat.native import settle
from ratoon.chat.normalise import Conversation, Rules, normalise
from ratoon.chat.template import ChatTemplate, Message
from ratoon.chat.thinking import Reasoning
from ratoon.chat.tokens import Guard, Markup, PromptTokenizer
from ratoon.chat.vocab import Vocab
from ratoon.errors import InvalidRequest

# Anthropic allows four; a client that sends more pays no more than this many extra renders.
_MAX_MARKS = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """``boundaries``: ascending token offsets, each below ``len(tokens)``, worth a saved state.
    ``fired``: how often each rule changed something. ``has_late_run``: system messages follow
    the first user message directly, so that hoisting them makes a difference. ``dialect`` and
    ``schemas`` tell how to read calls in the reply; ``schemas`` holds the tools that may be called
    now. ``reasoning`` is None where the reply can't begin with any."""

    tokens: list[int]
    boundaries: tuple[int, ...]
    fired: Mapping[str, int]
    has_late_run: bool
    parses_tools: bool
    text_len: int
    dialect: Dialect = hermes.DIALECT
    schemas: Tools = field(default_factory=dict)
    reasoning: Reasoning | None = None


class Renderer:
    """Renders requests for one model. Equal normalised conversations give equal tokens.

    Without a ``dialect`` the template tells how the model writes calls.
    """

    def __init__(
        self, template: ChatTemplate, vocab: Vocab, rules: Rules, dialect: Dialect | None = None
    ) -> None:
        self._template, self._dialect = settle(template, dialect)
        self._rules = rules
        self._markup = Markup(vocab, template.source)
        self._tokenizer = PromptTokenizer(vocab, self._markup)

    def render(self, request: wire.CountTokensRequest, *, hoist: bool = True) -> Prompt:
        """Raises InvalidRequest for what the model or its template can't take."""
        conversation = normalise(request, self._rules, hoist=hoist)
        _check(request, conversation)
        draft = self._draft(request, conversation)
        text = draft.text()
        tokenised = self._tokenizer.tokenize(text, draft.guard.sentinel, draft.cuts(text))
        n_tokens = len(tokenised.tokens)
        chooses_none = request.tool_choice is not None and request.tool_choice.type == "none"
        return Prompt(
            tokens=tokenised.tokens,
            boundaries=tuple(sorted({n for n in tokenised.offsets if 0 < n < n_tokens})),
            fired=conversation.fired,
            has_late_run=conversation.has_late_run,
            parses_tools=bool(draft.tools) and not chooses_none,
            text_len=len(text) - text.count(draft.guard.sentinel),
            dialect=self._dialect,
            schemas=tools.schemas(request.tools),
        )

    def _draft(self, request: wire.CountTokensRequest, conversation: Conversation) -> _Draft:
        """The request's guarded parts, with sentinels that the request does not contain."""
        offered = tools.offered(request.tools)
        seen: set[str] = set()
        while True:
            guard = Guard(self._markup, seen)
            draft = _Draft(
                self._template,
                guard,
                system=[guard.text(block.text) for block in conversation.system],
                tools=[guard.value(tools.definition(tool)) for tool in offered],
                entries=Converter(self._template, guard, self._dialect).entries(conversation),
                n_head=conversation.n_head,
                marked_system=[bool(block.cache_control) for block in conversation.system],
                marked_tools=[bool(tool.cache_control) for tool in offered],
            )
            if guard.is_sound:
                return draft
            seen |= guard.seen


class _Part(NamedTuple):
    """A prefix of the prompt, by the number of its parts. Entries come with all of the head."""

    n_system: int
    n_tools: int
    n_entries: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """One request's guarded parts, from which any prefix of the conversation can be rendered."""

    template: ChatTemplate
    guard: Guard
    system: list[str]
    tools: list[dict[str, Any]]
    entries: list[Entry]
    n_head: int
    marked_system: Sequence[bool]
    marked_tools: Sequence[bool]

    def text(self) -> str:
        """The whole prompt. A final assistant text is left open: the reply continues it."""
        n_tools = len(self.tools)
        messages = self._messages(_Part(len(self.system), n_tools, len(self.entries)))
        last = messages[-1]
        if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
            mark = self.guard.end_mark
            opened = [*messages[:-1], {**last, "content": last["content"] + mark}]
            text, found, _ = self._render(opened, n_tools, False).rpartition(mark)
            if found:
                return text
        return self._render(messages, n_tools, True)

    def cuts(self, text: str) -> list[int]:
        """Ascending offsets into the prompt text where a saved state pays."""
        return sorted({self._end_of(part, text) for part in self._parts()})

    def _parts(self) -> set[_Part]:
        n_system, n_tools = len(self.system), len(self.tools)
        marked = _marked([entry.is_marked for entry in self.entries])
        return {
            *(_Part(n_system, n_tools, n) for n in (0, self.n_head, self._trailing_turn())),
            *(_Part(n_system, n_tools, n) for n in marked),
            *(_Part(n_system, n, 0) for n in _marked(self.marked_tools)),
            *(_Part(n, n_tools, 0) for n in _marked(self.marked_system)),
        }

    def _trailing_turn(self) -> int:
        """How many entries precede the last turn that is not the assistant's."""
        n = len(self.entries)
        while n > self.n_head and self._role(n - 1) == "assistant":
            n -= 1
        while n > self.n_head and self._role(n - 1) != "assistant":
            n -= 1
        return n

    def _role(self, index: int) -> str:
        role: str = self.entries[index].message["role"]
        return role

    def _end_of(self, part: _Part, text: str) -> int:
        """Where the prompt leaves the rendering of a part of it."""
        messages = self._messages(part)
        has_user = any(message["role"] != "system" for message in messages)
        if not has_user and not self.template.renders_head_alone:
            # Some user text must follow; this one parts from every text a client sends.
            entry = {"role": "user", "content": self.guard.end_mark}
            messages = arrange([*messages, entry], self.template)
        try:
            return _n_common(text, self._render(messages, part.n_tools, False))
        except InvalidRequest:
            return 0

    def _messages(self, part: _Part) -> list[Message]:
        texts = self.system[: part.n_system]
        has_section = part.n_tools and not self.template.takes_tools
        if has_section and part.n_system == len(self.system):
            texts.append(tools.section(self.tools[: part.n_tools]))
        leading = [{"role": "system", "content": SEPARATOR.join(texts)}] if texts else []
        entries = self.entries[: part.n_entries]
        return arrange(leading + [entry.message for entry in entries], self.template)

    def _render(self, messages: list[Message], n_tools: int, generation: bool) -> str:
        offered = self.tools[:n_tools] if n_tools and self.template.takes_tools else None
        return self.template.render(messages, offered, generation)


def _check(request: wire.CountTokensRequest, conversation: Conversation) -> None:
    if not request.messages:
        raise InvalidRequest("messages: at least one message is required")
    spoken = [turn for turn in conversation.turns if turn.role != "system"]
    if not spoken:
        raise InvalidRequest("messages: at least one user message with content is required")
    if spoken[0].role != "user":
        raise InvalidRequest(
            f"messages.{spoken[0].index}: the first message must have the role 'user'"
        )


def _marked(flags: Sequence[bool]) -> list[int]:
    """For each of the last marks, how many parts it closes."""
    return [n for n, is_marked in enumerate(flags, 1) if is_marked][-_MAX_MARKS:]


def _n_common(left: str, right: str) -> int:
    """The length of the common prefix, by whole-slice comparisons."""
    if left.startswith(right):
        return len(right)
    end = min(len(left), len(right))
    return bisect_left(range(end), True, key=lambda n: left[: n + 1] != right[: n + 1])

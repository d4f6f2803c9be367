"""A reply's bytes to deltas of reasoning, text and tool calls: a pure state machine.

What may turn out to be markup is held back until it is known; nothing that the model wrote is
lost, except the markup of calls and the blanks around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ratoon.chat.detokenizer import Detokenizer
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Call, Dialect, Form, Tools
from ratoon.chat.formats.scan import Body
from ratoon.chat.stop import StopMatcher, n_partial
from ratoon.chat.thinking import Reasoning, ThinkSplitter


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolInput:
    partial_json: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    pass


Delta = TextDelta | ThinkingDelta | ToolStart | ToolInput | ToolEnd


class ReplyParser:
    """Feed pieces, then finish once. The concatenated deltas do not depend on the pieces.

    No stop sequence counts and no call starts inside reasoning.
    """

    def __init__(
        self,
        stop_sequences: Sequence[str],
        parses_tools: bool,
        tool_id: Callable[[], str],
        dialect: Dialect = hermes.DIALECT,
        tools: Tools = MappingProxyType({}),
        reasoning: Reasoning | None = None,
    ) -> None:
        self._detokenizer = Detokenizer()
        self._thinking = ThinkSplitter(reasoning) if reasoning else None
        self._stop = StopMatcher(stop_sequences)
        self._calls = _CallSplitter(tool_id, dialect, tools) if parses_tools else None

    @property
    def stopped(self) -> str | None:
        """The stop sequence that ended the reply; what follows it is ignored."""
        return self._stop.matched

    def feed(self, piece: bytes) -> list[Delta]:
        text = self._detokenizer.feed(piece)
        if self._thinking is None:
            return self._split(self._stop.feed(text))
        thought, text = self._thinking.feed(text)
        return _thought(thought) + self._split(self._stop.feed(text))

    def finish(self) -> list[Delta]:
        text, thoughts = self._detokenizer.flush(), ["", ""]
        if self._thinking is not None:
            thoughts[0], text = self._thinking.feed(text)
            thoughts[1], last = self._thinking.finish()
            text += last
        deltas = self._split(self._stop.feed(text) + self._stop.flush())
        deltas = _thought("".join(thoughts)) + deltas
        return deltas + self._calls.finish() if self._calls else deltas

    def _split(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.feed(text)
        return [TextDelta(text)] if text else []


class _CallSplitter:
    """Separates calls from text."""

    def __init__(self, tool_id: Callable[[], str], dialect: Dialect, tools: Tools) -> None:
        self._tool_id = tool_id
        self._forms = dialect.forms
        self._tools = tools
        self._held = ""
        self._body: Body | None = None
        self._is_after_call = False
        self._has_spoken = False

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        rest: str | None = text
        while rest is not None:
            rest = self._text(rest, deltas) if self._body is None else self._call(rest, deltas)
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        while self._body is not None:
            body, self._body = self._body, None
            form, text = body.form, body.text
            calls = form.parse(text, self._tools, is_cut=True)
            if calls is None and (n_begun := n_partial(text, form.end)):
                calls = form.parse(text[:-n_begun], self._tools)
            if calls is None and form.end and form.end in text:
                # Quotes in it never closed, so its end went unnoticed: the call is broken,
                # and what follows it is read again.
                body.text, _, rest = text.partition(form.end)
                self._emit(body, form.parse(body.text, self._tools), form.end, deltas)
                deltas += self.feed(rest)
            else:
                self._emit(body, calls, "", deltas)
        held, self._held = self._held, ""
        self._say(held, deltas)
        return deltas

    def _text(self, text: str, deltas: list[Delta]) -> str | None:
        """Emit text; what follows the start of a call is returned."""
        text = self._held + text
        found = min(
            ((at, form.start, form) for form in self._forms if (at := self._find(form, text)) >= 0),
            default=None,
        )
        n_held = 0 if found else max(self._n_begun(form, text) for form in self._forms)
        end = found[0] if found else len(text) - n_held
        spoken = text[:end].rstrip()
        self._held = text[len(spoken) : end if found else None]
        self._say(spoken, deltas)
        if found is None:
            return None
        at, start, form = found
        self._body = Body(form)
        return text[at + len(start) :]

    def _find(self, form: Form, text: str) -> int:
        """Where the form starts in the text, or -1."""
        if not form.is_opening:
            return text.find(form.start)
        n_blanks = len(text) - len(text.lstrip())
        is_first = not self._has_spoken and text.startswith(form.start, n_blanks)
        return n_blanks if is_first else -1

    def _n_begun(self, form: Form, text: str) -> int:
        """How many characters at the text's end may become a start of the form."""
        if not form.is_opening:
            return n_partial(text, form.start)
        begun = text.lstrip()
        return len(begun) * (not self._has_spoken and form.start.startswith(begun))

    def _say(self, text: str, deltas: list[Delta]) -> None:
        if text:
            _add_text(text.lstrip() if self._is_after_call else text, deltas)
            self._is_after_call = False
            self._has_spoken = True

    def _call(self, text: str, deltas: list[Delta]) -> str | None:
        """Collect a call; what follows its end is returned."""
        assert self._body is not None
        rest = self._body.feed(text)
        if rest is not None:
            body, self._body = self._body, None
            calls = body.form.parse(body.text, self._tools)
            self._emit(body, calls, body.form.end, deltas)
        return rest

    def _emit(self, body: Body, calls: list[Call] | None, end: str, deltas: list[Delta]) -> None:
        """The calls, or the text that was none, with the blanks held before it."""
        blanks, self._held = self._held, ""
        if not calls:
            self._say(blanks + body.raw + end, deltas)
            return
        for call in calls:
            deltas.append(ToolStart(self._tool_id(), call.name))
            if call.arguments:
                deltas.append(ToolInput(call.arguments))
            deltas.append(ToolEnd())
        self._is_after_call = True


def _thought(text: str) -> list[Delta]:
    return [ThinkingDelta(text)] if text else []


def _add_text(text: str, deltas: list[Delta]) -> None:
    if text:
        deltas.append(TextDelta(text))

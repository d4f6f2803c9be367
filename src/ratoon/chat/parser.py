"""A reply's bytes to deltas of text and tool calls: a pure state machine.

What may turn out to be markup is held back until it is known; nothing that the model wrote is
lost, except the markup of calls and the blanks around them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratoon.chat.detokenizer import Detokenizer
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Call
from ratoon.chat.stop import StopMatcher, n_partial


@dataclass(frozen=True, slots=True)
class TextDelta:
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


Delta = TextDelta | ToolStart | ToolInput | ToolEnd


class ReplyParser:
    """Feed pieces, then finish once. The concatenated deltas do not depend on the pieces."""

    def __init__(
        self, stop_sequences: Sequence[str], parses_tools: bool, tool_id: Callable[[], str]
    ) -> None:
        self._detokenizer = Detokenizer()
        self._stop = StopMatcher(stop_sequences)
        self._calls = _CallSplitter(tool_id) if parses_tools else None

    @property
    def stopped(self) -> str | None:
        """The stop sequence that ended the reply; what follows it is ignored."""
        return self._stop.matched

    def feed(self, piece: bytes) -> list[Delta]:
        return self._split(self._stop.feed(self._detokenizer.feed(piece)))

    def finish(self) -> list[Delta]:
        text = self._stop.feed(self._detokenizer.flush()) + self._stop.flush()
        deltas = self._split(text)
        return deltas + self._calls.finish() if self._calls else deltas

    def _split(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.feed(text)
        return [TextDelta(text)] if text else []


class _CallSplitter:
    """Separates calls from text."""

    def __init__(self, tool_id: Callable[[], str]) -> None:
        self._tool_id = tool_id
        self._held = ""
        self._body: _Body | None = None
        self._is_after_call = False

    def feed(self, text: str) -> list[Delta]:
        deltas: list[Delta] = []
        rest: str | None = text
        while rest is not None:
            rest = self._text(rest, deltas) if self._body is None else self._call(rest, deltas)
        return deltas

    def finish(self) -> list[Delta]:
        deltas: list[Delta] = []
        while self._body is not None:
            body, self._body = self._body.text, None
            first, end, rest = body.partition(hermes.END)
            call = hermes.parse_call(body, is_cut=True) or hermes.parse_call(_without_end(body))
            if call is None and end:
                # A string in it never closed, so its end went unnoticed: the call is broken,
                # and what follows it is read again.
                self._emit(first, hermes.parse_call(first), hermes.END, deltas)
                deltas += self.feed(rest)
            else:
                self._emit(body, call, "", deltas)
        held, self._held = self._held, ""
        self._say(held, deltas)
        return deltas

    def _text(self, text: str, deltas: list[Delta]) -> str | None:
        """Emit text; what follows the start of a call is returned."""
        text = self._held + text
        before, start, rest = text.partition(hermes.START)
        if start:
            spoken = before.rstrip()
            self._held = before[len(spoken) :]
            self._say(spoken, deltas)
            self._body = _Body()
            return rest
        n_held = n_partial(text, hermes.START)
        spoken = text[: len(text) - n_held].rstrip()
        self._held = text[len(spoken) :]
        self._say(spoken, deltas)
        return None

    def _say(self, text: str, deltas: list[Delta]) -> None:
        if text:
            _add_text(text.lstrip() if self._is_after_call else text, deltas)
            self._is_after_call = False

    def _call(self, text: str, deltas: list[Delta]) -> str | None:
        """Collect a call; what follows its end is returned."""
        assert self._body is not None
        found = self._body.feed(text)
        if found is None:
            return None
        body, rest = found
        self._body = None
        self._emit(body, hermes.parse_call(body), hermes.END, deltas)
        return rest

    def _emit(self, body: str, call: Call | None, end: str, deltas: list[Delta]) -> None:
        """The call, or the text that was no call, with the blanks held before it."""
        blanks, self._held = self._held, ""
        if call is None:
            self._say(blanks + hermes.START + body + end, deltas)
            return
        deltas.append(ToolStart(self._tool_id(), call.name))
        if call.arguments:
            deltas.append(ToolInput(call.arguments))
        deltas.append(ToolEnd())
        self._is_after_call = True


class _Body:
    """The text of a call so far; finds its end, not one that is quoted in a JSON string."""

    _MARKS = re.compile(rf'\\.|"|{hermes.END}', re.DOTALL)

    def __init__(self) -> None:
        self.text = ""
        self._at = 0
        self._is_quoted = False

    def feed(self, text: str) -> tuple[str, str] | None:
        """Body and rest, once the end is in."""
        self.text += text
        while mark := self._MARKS.search(self.text, self._at):
            if mark.group() == hermes.END:
                if not self._is_quoted:
                    return self.text[: mark.start()], self.text[mark.end() :]
            elif mark.group() == '"':
                self._is_quoted = not self._is_quoted
            self._at = mark.end()
        # An escape or an end may have begun; it is looked at again when more is in.
        n_begun = max(n_partial(self.text, hermes.END), self.text.endswith("\\"))
        self._at = max(self._at, len(self.text) - n_begun)
        return None


def _without_end(body: str) -> str:
    """The body less the beginning of an end that the reply stopped in."""
    return body[: len(body) - n_partial(body, hermes.END)]


def _add_text(text: str, deltas: list[Delta]) -> None:
    if text:
        deltas.append(TextDelta(text))

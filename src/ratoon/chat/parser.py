"""A reply's bytes to deltas of reasoning, text and tool calls: a pure state machine.

What may turn out to be markup is held back until it is known; nothing that the model wrote is
lost, except the markup of calls and the blanks around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from ratoon.chat.calls import CallSplitter
from ratoon.chat.deltas import Delta, TextDelta, ThinkingDelta, ToolEnd, ToolInput, ToolStart
from ratoon.chat.detokenizer import Detokenizer
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Tools
from ratoon.chat.stop import StopMatcher
from ratoon.chat.thinking import Reasoning, ThinkSplitter

__all__ = [
    "Delta",
    "ReplyParser",
    "TextDelta",
    "ThinkingDelta",
    "ToolEnd",
    "ToolInput",
    "ToolStart",
]


class ReplyParser:
    """Feed pieces, then finish once. The concatenated deltas do not depend on the pieces.

    No stop sequence counts and no call starts inside reasoning. Where all of a reply is markup,
    only its text may hold a stop sequence.
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
        self._is_frame = dialect.is_frame
        self._calls = (
            CallSplitter(tool_id, dialect, tools, takes_calls=parses_tools)
            if parses_tools or dialect.is_frame
            else None
        )

    @property
    def stopped(self) -> str | None:
        """The stop sequence that ended the reply; what follows it is ignored."""
        return self._stop.matched

    def feed(self, piece: bytes) -> list[Delta]:
        text = self._detokenizer.feed(piece)
        if self._thinking is None:
            return self._answer(text)
        thought, text = self._thinking.feed(text)
        return _thought(thought) + self._answer(text)

    def finish(self) -> list[Delta]:
        text, thoughts = self._detokenizer.flush(), ["", ""]
        if self._thinking is not None:
            thoughts[0], text = self._thinking.feed(text)
            thoughts[1], last = self._thinking.finish()
            text += last
        return _thought("".join(thoughts)) + self._answer(text) + self._finish_answer()

    def _answer(self, text: str) -> list[Delta]:
        if self._is_frame:
            return self._stopped_text(self._split(text))
        return self._split(self._stop.feed(text))

    def _finish_answer(self) -> list[Delta]:
        if self._is_frame:
            deltas = self._stopped_text(self._finish_calls())
            return deltas + _text(self._stop.flush())
        return self._split(self._stop.flush()) + self._finish_calls()

    def _stopped_text(self, deltas: list[Delta]) -> list[Delta]:
        """The deltas up to a stop sequence in their text; one begins and ends in one text."""
        found: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, TextDelta):
                found += _text(self._stop.feed(delta.text))
            elif self.stopped is None:
                found += [*_text(self._stop.flush()), delta]
        return found

    def _split(self, text: str) -> list[Delta]:
        if self._calls is not None:
            return self._calls.feed(text)
        return _text(text)

    def _finish_calls(self) -> list[Delta]:
        return self._calls.finish() if self._calls else []


def _text(text: str) -> list[Delta]:
    return [TextDelta(text)] if text else []


def _thought(text: str) -> list[Delta]:
    return [ThinkingDelta(text)] if text else []

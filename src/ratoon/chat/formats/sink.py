"""Where a reading puts what it finds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ratoon.chat.deltas import Delta, TextDelta, ThinkingDelta, ToolEnd, ToolInput, ToolStart
from ratoon.chat.formats.source import Broken, Source

# Name → JSON schema of the arguments, for each declared tool; empty where none are known.
Tools = Mapping[str, Mapping[str, Any]]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Sink:
    """Makes deltas of text, reasoning and calls.

    A call can't be taken back, so it goes out only once it is sure: its name is known, and its
    arguments are closed or the first value of them has come: all of it, or the beginning of a
    string or of what has brackets. What breaks off before that is text. What breaks off later
    stays the beginning of a call, and what follows the break is read as text.

    ``n_calls``  how many calls have gone out
    """

    def __init__(
        self, source: Source, tool_id: Callable[[], str], tools: Tools, *, takes_calls: bool = True
    ) -> None:
        self.tools = tools
        self.n_calls = 0
        self._source = source
        self._tool_id = tool_id
        self._takes_calls = takes_calls
        self._deltas: list[Delta] = []
        self._last: type[Delta] | None = None
        self._is_apart = False
        self._owes_end = False  # of a call that is whole
        self._forget()

    def _forget(self) -> None:
        self._name: str | None = None
        self._json: list[str] = []  # of the arguments, not yet out
        self._n_sure = 0  # how many of these may go out
        self._is_out = False

    def separate(self) -> None:
        """Another part begins. Two texts, or two reasonings, become paragraphs of one."""
        self._is_apart = True

    def text(self, text: str) -> None:
        if text:
            self._put(TextDelta(self._gap(TextDelta) + text))

    def thinking(self, text: str) -> None:
        if text:
            self._put(ThinkingDelta(self._gap(ThinkingDelta) + text))

    def _gap(self, kind: type[Delta]) -> str:
        return "\n\n" if self._is_apart and self._last is kind else ""

    def _put(self, delta: Delta) -> None:
        self.settle()
        self._is_apart = False
        self._last = type(delta)
        self._deltas.append(delta)

    def name(self, name: str, *, is_guess: bool = False) -> None:
        """The name of the call. With ``is_guess`` no markup tells it from text, so that it must
        be a declared one. Raises Broken for what can't be called."""
        is_known = not is_guess or not self.tools or name in self.tools
        if not name or not is_known or not self._takes_calls:
            raise Broken
        self._name = name
        self._send()

    def hold(self, text: str) -> None:
        """JSON text of the arguments that says nothing without what follows."""
        self._json.append(text)

    def write(self, text: str) -> None:
        """JSON text of the arguments."""
        self._json.append(text)
        self._n_sure = len(self._json)
        self._send()

    def write_text(self, text: str) -> None:
        """A piece of a string among the arguments, whose quotes are written apart."""
        self.write(json.dumps(sendable(text), ensure_ascii=False)[1:-1])

    def end(self) -> None:
        """The call is whole; its end goes out with what follows. Raises Broken where its name
        never came."""
        if self._name is None:
            raise Broken
        self._close()

    def cut(self, *, is_end: bool) -> bool:
        """The call breaks off; tells whether it is one. At the end of the reply its name will do;
        elsewhere it must have gone out."""
        is_call = self._is_out or (is_end and self._name is not None)
        if is_call:
            self._close()
        else:
            self._forget()
        return is_call

    def settle(self) -> None:
        """Nothing follows in this form."""
        if self._owes_end:
            self._owes_end = False
            self._deltas.append(ToolEnd())

    def drain(self) -> list[Delta]:
        """The deltas so far."""
        self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _send(self) -> None:
        if self._name is not None and self._n_sure and not self._is_out:
            self._start(self._name)

    def _start(self, name: str) -> None:
        self._is_out = True
        self.n_calls += 1
        self._put(ToolStart(self._tool_id(), name))

    def _flush(self) -> None:
        """One delta for all JSON text that may go out."""
        if self._is_out and self._n_sure:
            self._put(ToolInput("".join(self._json[: self._n_sure])))
            del self._json[: self._n_sure]
            self._n_sure = 0

    def _close(self) -> None:
        if not self._is_out and self._name is not None:
            self._start(self._name)
        self._flush()
        self._owes_end = True
        self._forget()
        self._source.mark()


def sendable(text: str) -> str:
    """Without lone surrogates: an escape may write one, UTF-8 can't carry it."""
    return _SURROGATE.sub("\ufffd", text)


class Nowhere(Sink):
    """Takes JSON text and drops it."""

    def __init__(self) -> None:
        super().__init__(Source(), str, {})

    def hold(self, text: str) -> None:
        pass

    def write(self, text: str) -> None:
        pass

"""Values written as literals of a programming language or as JSON, rewritten as JSON.

The text is only read, never run. A value is written while it comes, so that a text which ends
early leaves the JSON of its beginning.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ratoon.chat.formats.sink import Sink, sendable
from ratoon.chat.formats.source import Broken, Reading, ReadingWord, Source

_MAX_DEPTH = 64
_CONSTANTS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
}
_WORD = re.compile(r"[-+\w.]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_KEY = re.compile(r"[\w$./-]+")

# Up to the closing quote. An escape that the text ends in waits for the rest of it, and the first
# half of a character that takes two escapes for the second.
_HEX = "[0-9a-fA-F]"
_OPEN_ESCAPE = rf"u{_HEX}{{0,3}}\Z|x{_HEX}?\Z|u[dD][89abAB]{_HEX}{{2}}(?:\\(?:u{_HEX}{{0,3}})?)?\Z"
_QUOTED = {
    quote: re.compile(rf"(?:[^\\{quote}]|\\(?!{_OPEN_ESCAPE}).)*+", re.DOTALL) for quote in "\"'"
}


@dataclass(frozen=True, slots=True)
class Notation:
    """``quotes``: opening → closing text. In one-character quotes a backslash escapes:
    ``escape`` finds it, with the digits of a character's code or with its letter;
    ``escaped`` tells what a letter means. One that it doesn't know is no escape."""

    quotes: Mapping[str, str]
    escape: re.Pattern[str] = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
    escaped: Mapping[str, str] = field(default_factory=dict)

    def unescaped(self, text: str) -> str:
        """The text that a quoted one means; a surrogate pair is one character."""
        if "\\" not in text:
            return text
        text = self.escape.sub(self._escaped_char, text)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def _escaped_char(self, escape: re.Match[str]) -> str:
        *digits, char = escape.groups()
        code = next(filter(None, digits), None)
        return chr(int(code, 16)) if code else self.escaped.get(char, escape.group())


_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\"}
JSON = Notation({'"': '"'}, escaped=_CONTROLS | {'"': '"', "/": "/"})
PYTHON = Notation(
    {'"': '"', "'": "'"},
    re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL),
    _CONTROLS | {'"': '"', "'": "'", "0": "\0", "\n": ""},
)


class Literals:
    """Reads literals of one notation from a source into a sink."""

    def __init__(self, source: Source, sink: Sink, notation: Notation) -> None:
        self._source = source
        self._sink = sink
        self._notation = notation
        self._quotes = tuple(notation.quotes)

    def arguments(self, equals: str, closing: str) -> Reading:
        """Keys and values up to the closing text, as the JSON object of a call's arguments."""
        self._sink.hold("{")
        yield from self._pairs(equals, closing, 0)

    def value(self) -> Reading:
        """Any literal."""
        yield from self._value(0)

    def string(self, opening: str = "") -> ReadingWord:
        """A quoted text, or what is left of it behind its opening quote."""
        parts: list[str] = []
        opening = opening or (yield from self._source.need(*self._quotes))
        yield from self._string(opening, parts.append)
        return "".join(parts)

    def _pairs(self, equals: str, closing: str, depth: int) -> Reading:
        source, sink = self._source, self._sink
        separator = ""
        while not (yield from source.take(closing)):
            if separator:
                yield from source.need(",")
                if (yield from source.take(closing)):
                    break
            key = yield from self._key()
            yield from source.need(equals)
            sink.hold(f"{separator}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._value(depth + 1)
            separator = ", "
        sink.write("}")

    def _key(self) -> ReadingWord:
        if (yield from self._source.peek(*self._quotes)):
            return sendable((yield from self.string()))
        return (yield from self._source.word(_KEY))

    def _value(self, depth: int) -> Reading:
        if depth > _MAX_DEPTH:
            raise Broken
        opening = yield from self._source.take(*self._quotes, "{", "[")
        if opening == "{":
            self._sink.write("{")
            yield from self._pairs(":", "}", depth)
        elif opening == "[":
            self._sink.write("[")
            yield from self._items(depth)
        elif opening:
            self._sink.write('"')
            yield from self._string(opening, self._sink.write_text)
            self._sink.write('"')
        else:
            self._sink.write(_scalar((yield from self._source.word(_WORD))))

    def _items(self, depth: int) -> Reading:
        source, sink = self._source, self._sink
        separator = ""
        while not (yield from source.take("]")):
            if separator:
                yield from source.need(",")
                if (yield from source.take("]")):
                    break
            sink.hold(separator)
            yield from self._value(depth + 1)
            separator = ", "
        sink.write("]")

    def _string(self, quote: str, into: Callable[[str], object]) -> Reading:
        """The text behind an opening quote, as it comes, and the closing quote."""
        source = self._source
        closing = self._notation.quotes[quote]
        if len(closing) > 1:
            yield from source.until(closing, into=into)
            source.at += len(closing)
            return
        while True:
            found = _QUOTED[closing].match(source.text, source.at)
            if found and found.group():
                into(self._notation.unescaped(found.group()))
                source.at = found.end()
            if source.text.startswith(closing, source.at):
                source.at += 1
                return
            yield


def finite(text: str) -> float:
    """The nearest number that is not infinite."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _scalar(word: str) -> str:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if not _NUMBER.fullmatch(word):
        raise Broken
    return word if math.isfinite(float(word)) else repr(finite(word))

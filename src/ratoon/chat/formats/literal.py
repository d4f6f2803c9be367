"""Arguments written as literals of a programming language, rewritten as JSON.

The text is only read, never run. Its JSON is written while it is read, so that a text which ends
early leaves the JSON of its beginning.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from ratoon.chat.formats.json_text import finite, sendable
from ratoon.chat.stop import n_partial

PYTHON_QUOTES = {'"': '"', "'": "'"}

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
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_UNFINISHED = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|x[0-9a-fA-F]?)?\Z")
_ESCAPING = r"(?:[^\\{}]|\\.)*+"
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_ESCAPED |= {char: char for char in "\\'\""}


class Broken(Exception):
    """The text is no literal."""


class Ended(Exception):
    """The text is the beginning of one."""


class Reader:
    """A place in the text, and ``json``: what was written so far."""

    def __init__(self, text: str, quotes: Mapping[str, str]) -> None:
        self.json = ""
        self._text = text
        self._at = 0
        self._quotes = quotes

    @property
    def is_at_end(self) -> bool:
        self._skip_blanks()
        return self._at == len(self._text)

    def take(self, expected: str) -> bool:
        """Step over the expected text, if it comes next."""
        self._skip_blanks()
        is_next = self._text.startswith(expected, self._at)
        self._at += len(expected) * is_next
        return is_next

    def need(self, expected: str) -> None:
        """Step over the expected text; raises Ended or Broken where it doesn't come next."""
        if not self.take(expected):
            raise Ended if expected.startswith(self._text[self._at :]) else Broken

    def word(self, pattern: re.Pattern[str]) -> str:
        """What the pattern matches here. A word that the text ends in may go on."""
        self._skip_blanks()
        found = pattern.match(self._text, self._at)
        if found is None:
            raise Ended if self.is_at_end else Broken
        self._at = found.end()
        if self._at == len(self._text):
            raise Ended
        return found.group()

    def pairs(self, equals: str, closing: str, depth: int = 0) -> None:
        """Keys and values up to the closing text, as a JSON object."""
        self.json += "{"
        separator = ""
        while not self.take(closing):
            if separator:
                self.need(",")
                if self.take(closing):
                    break
            self._pair(separator, equals, depth)
            separator = ", "
        self.json += "}"

    def _pair(self, separator: str, equals: str, depth: int) -> None:
        written = self.json
        try:
            self.json += separator
            if self._quote() is None:
                self.json += json.dumps(self.word(_KEY), ensure_ascii=False)
            else:
                self._string()
            self.json += ": "
            self.need(equals)
        except Ended:
            self.json = written  # a key alone says nothing
            raise
        self._value(depth + 1)

    def _value(self, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise Broken
        if self._quote() is not None:
            self._string()
        elif self.take("{"):
            self.pairs(":", "}", depth)
        elif self.take("["):
            self._items(depth)
        else:
            self.json += _scalar(self.word(_WORD))

    def _items(self, depth: int) -> None:
        self.json += "["
        separator = ""
        while not self.take("]"):
            if separator:
                self.need(",")
                if self.take("]"):
                    break
            self.json += separator
            self._value(depth + 1)
            separator = ", "
        self.json += "]"

    def _quote(self) -> str | None:
        """The quote that comes next."""
        self._skip_blanks()
        rest = self._text[self._at : self._at + max(map(len, self._quotes))]
        if any(quote.startswith(rest) and quote != rest for quote in self._quotes):
            raise Ended
        return next((quote for quote in self._quotes if rest.startswith(quote)), None)

    def _string(self) -> None:
        quote = self._quote() or ""
        start = self._at + len(quote)
        closing = self._quotes[quote]
        if len(closing) == 1:
            body = re.compile(_ESCAPING.format(closing), re.DOTALL).match(self._text, start)
            end = body.end() if body else start
        else:
            end = self._text.find(closing, start)
            end = len(self._text) if end < 0 else end
        is_closed = self._text.startswith(closing, end)
        text = self._text[start:end]
        if len(closing) == 1:
            text = _unescaped(text if is_closed else _UNFINISHED.sub("", text))
        elif not is_closed:
            text = text[: len(text) - n_partial(text, closing)]
        written = json.dumps(sendable(text), ensure_ascii=False)
        self.json += written if is_closed else written[:-1]
        if not is_closed:
            raise Ended
        self._at = end + len(closing)

    def _skip_blanks(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def _scalar(word: str) -> str:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if not _NUMBER.fullmatch(word):
        raise Broken
    return word if math.isfinite(float(word)) else repr(finite(word))


def _unescaped(text: str) -> str:
    """The text that a quoted one means; a surrogate pair is one character."""
    text = _ESCAPE.sub(_escaped_char, text)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped_char(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2]
    if digits:
        return chr(int(digits, 16))
    return _ESCAPED.get(escape[3], escape.group())

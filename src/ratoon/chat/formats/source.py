"""Text that is read while it still comes."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator

from ratoon.chat.formats.signal import BLANKS, find_signal
from ratoon.chat.stop import n_partial

# A reading of a text: each ``yield`` waits for more of it.
Reading = Generator[None, None, None]
ReadingWord = Generator[None, None, str]

_BLANKS = re.compile(f"[{BLANKS}]*")
# No name and no number is longer; it bounds what is read again when more text comes.
_MAX_WORD = 1 << 13


class Broken(Exception):
    """What comes next is not what must come."""


class Ended(Exception):
    """The text ended inside what is read; thrown into a reading that still waits."""


class Source:
    """A place in a text that grows. Everything in front of the place is read for good, so that
    the work for a long text is its length and not its length times the number of pieces.

    ``text``  what has come and may still be read
    ``at``    the place in it
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self._marked = 0
        self._parts: list[str] = []

    def feed(self, text: str) -> None:
        if self.at > self._marked:
            self._parts.append(self.text[self._marked : self.at])
        self.text = self.text[self.at :] + text
        self._marked = self.at = 0

    def skip(self) -> None:
        """Step over all that is here."""
        self.at = len(self.text)

    def leave(self) -> str:
        """What is not read; it is taken out."""
        rest, self.text = self.text[self.at :], ""
        self.at = 0
        self.mark()
        return rest

    def mark(self) -> None:
        """Forget the text in front of the place."""
        self._parts = []
        self._marked = self.at

    @property
    def since_mark(self) -> str:
        """What was read since the mark."""
        return "".join(self._parts) + self.text[self._marked : self.at]

    def blanks(self) -> Reading:
        """Step over blanks; afterwards a character stands here."""
        while True:
            found = _BLANKS.match(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text):
                return
            yield

    def peek(self, *expected: str) -> ReadingWord:
        """Which of the texts comes next behind blanks; "" if none does."""
        yield from self.blanks()
        while True:
            for text in expected:
                if self.text.startswith(text, self.at):
                    return text
            rest = self.text[self.at : self.at + max(map(len, expected))]
            if not any(text.startswith(rest) for text in expected):
                return ""
            yield

    def take(self, *expected: str) -> ReadingWord:
        """Step over the one of the texts that comes next, and tell which."""
        found = yield from self.peek(*expected)
        self.at += len(found)
        return found

    def need(self, *expected: str) -> ReadingWord:
        """As ``take``, but raises Broken where none comes next."""
        found = yield from self.take(*expected)
        if not found:
            raise Broken
        return found

    def signal(self, *signals: str) -> ReadingWord:
        """Step over the one of the signals that comes next, and tell which; "" if none does."""
        while (found := find_signal(self.text[self.at :], signals)) is not None:
            signal, n_read = found
            if signal:
                self.at += n_read
                return signal
            yield
        return ""

    def word(self, pattern: re.Pattern[str]) -> ReadingWord:
        """What the pattern matches behind blanks, as much as it can; raises Broken for nothing."""
        yield from self.blanks()
        while True:
            found = pattern.match(self.text, self.at)
            if found is None or found.end() - self.at > _MAX_WORD:
                raise Broken
            if found.end() < len(self.text):
                self.at = found.end()
                return found.group()
            yield

    def until(self, *ends: str, into: Callable[[str], object]) -> ReadingWord:
        """Give the text in front of the first of the ends away as it comes; tell which it is.
        The end itself is left. What may be the beginning of one waits."""
        pattern = re.compile("|".join(map(re.escape, sorted(ends, key=len, reverse=True))))
        while True:
            found = pattern.search(self.text, self.at)
            tail = self.text[max(self.at, len(self.text) - max(map(len, ends))) :]
            n_held = max(n_partial(tail, end) for end in ends)
            to = found.start() if found else len(self.text) - n_held
            if to > self.at:
                into(self.text[self.at : to])
                self.at = to
            if found:
                return found.group()
            yield

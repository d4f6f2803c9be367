"""Finds where the body of a call ends."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Form
from ratoon.chat.stop import n_partial

_OPENING, _CLOSING = "[{", "]}"
# Quotes of programming languages: a backslash takes the next character with it.
_ESCAPING = ('"', "'")


class Body:
    """The text of one call so far. An end or a bracket inside quotes does not count."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.text = form.lead
        self._at = 0
        self._depth = 0
        self._closing = ""  # what ends the quotes the scan is in
        marks = [*form.quotes, form.end] if form.end else [*form.quotes, *_OPENING, *_CLOSING]
        self._marks = sorted(marks, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._marks)))

    @property
    def raw(self) -> str:
        """Start and body as the model wrote them."""
        return self.form.start + self.text[len(self.form.lead) :]

    def feed(self, text: str) -> str | None:
        """What follows the end, once that is in; the end itself is in neither text."""
        self.text += text
        while mark := self._next():
            self._at = mark.end()
            end = self._read(mark)
            if end is not None:
                rest = self.text[mark.end() :]
                self.text = self.text[:end]
                return rest
        return None

    def _next(self) -> re.Match[str] | None:
        """The next mark. One that may still grow into a longer one is left until it can't."""
        if self._closing:
            pattern = re.escape(self._closing)
            if self._closing in _ESCAPING:
                pattern = rf"\\.|{pattern}"
            mark = re.compile(pattern, re.DOTALL).search(self.text, self._at)
            n_begun = max(n_partial(self.text, self._closing), self.text.endswith("\\"))
        else:
            mark = self._any.search(self.text, self._at)
            n_begun = max(n_partial(self.text, begun) for begun in self._marks)
            if mark and mark.start() >= len(self.text) - n_begun:
                mark = None
        if mark is None:
            self._at = max(self._at, len(self.text) - n_begun)
        return mark

    def _read(self, mark: re.Match[str]) -> int | None:
        """Where the body ends, if it does at this mark."""
        found = mark.group()
        if self._closing:
            self._closing = "" if found == self._closing else self._closing
        elif found in self.form.quotes:
            self._closing = self.form.quotes[found]
        elif found == self.form.end:
            return mark.start()
        else:
            self._depth += 1 if found in _OPENING else -1
            if self._depth <= 0:
                return mark.end()
        return None

"""Finds where the JSON body of a call ends, without reading it."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Form
from ratoon.chat.stop import n_partial

_QUOTE = '"'
_OPENING, _CLOSING = "[{", "]}"


class Body:
    """The text of one body so far. An end or a bracket inside a string does not count."""

    def __init__(self, form: Form) -> None:
        self.text = form.lead
        self._end = form.end
        self._at = 0
        self._depth = 0
        self._is_in_string = False
        marks = [_QUOTE, form.end] if form.end else [_QUOTE, *_OPENING, *_CLOSING]
        self._marks = re.compile("|".join(map(re.escape, marks)))
        self._n_held = len(form.end)

    def feed(self, text: str) -> str | None:
        """What follows the end, once that is in."""
        self.text += text
        while mark := self._next():
            self._at = mark.end()
            if self._is_end(mark.group()):
                return self.text[self._at :]
        return None

    def _next(self) -> re.Match[str] | None:
        """The next mark. An escape that may go on waits."""
        if not self._is_in_string:
            mark = self._marks.search(self.text, self._at)
            begun = n_partial(self.text, self._end)
        else:
            mark = re.compile(r'\\.|"', re.DOTALL).search(self.text, self._at)
            begun = self.text.endswith("\\")
        if mark is None:
            self._at = max(self._at, len(self.text) - begun)
        return mark

    def _is_end(self, found: str) -> bool:
        if self._is_in_string:
            self._is_in_string = found != _QUOTE
            return False
        if found == _QUOTE:
            self._is_in_string = True
            return False
        if found == self._end:
            return True
        self._depth += 1 if found in _OPENING else -1
        return self._depth <= 0

"""Finds where the JSON body of a form ends, without reading it."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Form
from ratoon.chat.stop import n_partial

_QUOTE = '"'
_INSIDE = re.compile(r'\\.|"|\n', re.DOTALL)  # a string of JSON ends with its line
_OPENING, _CLOSING = "[{", "]}"


class Body:
    """The data that one body is. An end or a bracket inside a string does not count."""

    def __init__(self, form: Form) -> None:
        self._text = form.lead
        self._end = form.end
        self._at = 0
        self._depth = 0
        self._is_in_string = False
        marks = [_QUOTE, form.end] if form.end else [_QUOTE, *_OPENING, *_CLOSING]
        self._marks = re.compile("|".join(map(re.escape, marks)))

    def feed(self, text: str) -> str | None:
        """What follows the end, once that is in."""
        self._text = self._text[self._at :] + text
        self._at = 0
        while mark := self._next():
            self._at = mark.end()
            if self._is_end(mark.group()):
                return self._text[self._at :]
        return None

    def _next(self) -> re.Match[str] | None:
        """The next mark. An escape that may go on waits."""
        if not self._is_in_string:
            mark = self._marks.search(self._text, self._at)
            begun = n_partial(self._text, self._end)
        else:
            mark = _INSIDE.search(self._text, self._at)
            begun = self._text.endswith("\\")
        if mark is None:
            self._at = max(self._at, len(self._text) - begun)
        return mark

    def _is_end(self, found: str) -> bool:
        if self._is_in_string:
            self._is_in_string = found not in (_QUOTE, "\n")
            return False
        if found == _QUOTE:
            self._is_in_string = True
            return False
        if found == self._end:
            return True
        self._depth += 1 if found in _OPENING else -1
        return self._depth <= 0

"""DeepSeek V3, R1 and V3.1: a section of calls between special tokens."""

from __future__ import annotations

import re
from functools import partial

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.section import read_section
from ratoon.chat.formats.source import ReadingWord, Source

START = "<｜tool▁calls▁begin｜>"
END = "<｜tool▁calls▁end｜>"

_WORD = re.compile(r"[^\s<`{]+")
_KIND = "function"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"


def _name(source: Source) -> ReadingWord:
    """V3 and R1 write the kind of tool before its name and fence the arguments; V3.1 does
    neither."""
    name = yield from source.word(_WORD)
    yield from source.need(_SEPARATOR, f"{_FENCE}json")
    if name == _KIND and not (yield from source.peek("{")):
        name = yield from source.word(_WORD)
        yield from source.need(f"{_FENCE}json", _SEPARATOR)
    return name


_read = partial(
    read_section,
    start="<｜tool▁call▁begin｜>",
    read_name=_name,
    ends=(_FENCE, "<｜tool▁call▁end｜>"),
)

DIALECT = Dialect("deepseek", (Form(START, _read, END),))

"""DeepSeek V3, R1 and V3.1: a section of calls between special tokens."""

from __future__ import annotations

import re
from functools import partial

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.section import read_section
from ratoon.chat.formats.source import ReadingWord, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

START = "<｜tool▁calls▁begin｜>"
END = "<｜tool▁calls▁end｜>"

_BEGIN = "<｜tool▁call▁begin｜>"
_CLOSE = "<｜tool▁call▁end｜>"
_WORD = re.compile(r"[^\s<`{]+")
_KIND = "function"
_SEPARATOR = "<｜tool▁sep｜>"
_FENCE = "```"
_OPENED, _CLOSED = f"\n{_FENCE}json\n", f"\n{_FENCE}"


def _name(source: Source) -> ReadingWord:
    """V3 and R1 write the kind of tool before its name and fence the arguments; V3.1 does
    neither."""
    name = yield from source.word(_WORD)
    yield from source.need(_SEPARATOR, f"{_FENCE}json")
    if name == _KIND and not (yield from source.peek("{")):
        name = yield from source.word(_WORD)
        yield from source.need(f"{_FENCE}json", _SEPARATOR)
    return name


def _write(lark: Lark, name: str, schema: Schema) -> str:
    head = f"{lark.text(_BEGIN)} {plain(name)} {lark.text(_SEPARATOR)}"
    return f"{head} {lark.arguments(schema)} {lark.text(_CLOSE)}"


def _write_fenced(lark: Lark, name: str, schema: Schema) -> str:
    head = f"{lark.text(_BEGIN + _KIND + _SEPARATOR)} {plain(name + _OPENED)}"
    return f"{head} {lark.arguments(schema)} {lark.text(_CLOSED + _CLOSE)}"


_read = partial(read_section, start=_BEGIN, read_name=_name, ends=(_FENCE, _CLOSE))
_MARKS = (_BEGIN, _SEPARATOR, _CLOSE)
_LAYOUTS = (
    Layout(_write, between="", names=_WORD, marks=_MARKS),
    Layout(_write_fenced, between="\n", names=_WORD, marks=_MARKS),
)

DIALECT = Dialect("deepseek", (Form(START, _read, END, layouts=_LAYOUTS),))

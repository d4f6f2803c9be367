"""DeepSeek V3, R1 and V3.1: a section of calls between special tokens."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.json_text import QUOTES
from ratoon.chat.formats.section import parse_section
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

START = "<｜tool▁calls▁begin｜>"
END = "<｜tool▁calls▁end｜>"

_BEGIN = "<｜tool▁call▁begin｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_CLOSE = "<｜tool▁call▁end｜>"

# V3 and R1 write the kind of tool before its name and fence the arguments; V3.1 does neither.
_HEAD = re.compile(
    r"<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?\s*([^\s<`{]+)\s*"
    r"(?:<｜tool▁sep｜>|```json\s)\s*"
    r"(?:(?!\Z)|(?<!function<｜tool▁sep｜>))"  # cut off there, it may have been the kind
)
_TAIL = re.compile(r"\s*(?:```)?\s*<｜tool▁call▁end｜>\s*")


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """All calls of a section."""
    return parse_section(body, _HEAD, _TAIL, is_cut=is_cut)


def _write(lark: Lark, name: str, schema: Schema) -> str:
    head = f"{lark.text(_BEGIN)} {plain(name)} {lark.text(_SEPARATOR)}"
    return f"{head} {lark.arguments(schema)} {lark.text(_CLOSE)}"


def _write_fenced(lark: Lark, name: str, schema: Schema) -> str:
    head = f"{lark.text(_BEGIN + 'function' + _SEPARATOR)} {plain(name + _FENCE)}"
    return f"{head} {lark.arguments(schema)} {lark.text(_FENCE_END + _CLOSE)}"


_NAMES = re.compile(r"[^\s<`{]+")
_MARKS = (_BEGIN, _SEPARATOR, _CLOSE)
_FENCE, _FENCE_END = "\n```json\n", "\n```"
_LAYOUTS = (
    Layout(_write, between="", names=_NAMES, marks=_MARKS),
    Layout(_write_fenced, between="\n", names=_NAMES, marks=_MARKS),
)

DIALECT = Dialect("deepseek", (Form(START, parse, END, quotes=QUOTES, layouts=_LAYOUTS),))

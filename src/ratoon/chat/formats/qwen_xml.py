"""Qwen3-Coder: a function tag around one tag for each argument."""

from __future__ import annotations

import re

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_object
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.formats.tagged import Shape, read_pairs
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema
from ratoon.chat.grammar.tagged import Tags, write_tagged

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_NAME = re.compile(r"[^<>\n]+")
_SHAPE = Shape(_NAME, "<parameter=", ">", "", "</parameter>", has_line_ends=True)


def read(source: Source, sink: Sink) -> Reading:
    """One call; in JSON too, which these models fall back to."""
    if (yield from source.peek("{", _FUNCTION)) == "{":
        yield from read_object(source, sink)
        return
    yield from source.need(_FUNCTION)
    yield from read_function(source, sink)


def read_function(source: Source, sink: Sink) -> Reading:
    """One call behind the beginning of its function tag."""
    name = (yield from source.word(_NAME)).strip()
    yield from source.need(">")
    sink.name(name)
    yield from read_pairs(source, sink, sink.tools.get(name), _SHAPE, _FUNCTION_END)
    yield from source.need(_FUNCTION_END)
    sink.end()


def _write(lark: Lark, name: str, schema: Schema) -> str:
    return f"{plain(name + _HEAD_END)} {write_tagged(lark, schema, _TAGS)}"


_HEAD_END = ">\n"
_TAGS = Tags(
    opening=_SHAPE.key,
    middle=_HEAD_END,
    closing=f"\n{_SHAPE.value_end}\n",
    stop=_SHAPE.value_end,
    keys=_NAME,
)
_BARE = Layout(_write, after=_FUNCTION_END, names=_NAME)
_WRAPPED = Layout(
    _write, before=f"\n{_FUNCTION}", after=f"{_FUNCTION_END}\n", again="\n", names=_NAME
)

DIALECT = Dialect(
    "qwen_xml",
    (
        Form(hermes.START, read, hermes.END, layouts=(_WRAPPED,)),
        Form("<seed:tool_call>", read, "</seed:tool_call>", layouts=(_WRAPPED,)),
        # The outer tag is sometimes left out.
        Form(_FUNCTION, read_function, layouts=(_BARE,)),
    ),
)

"""GLM 4.x: the name, then a pair of tags for each argument."""

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

_NAME = re.compile(r"[\w.:/-]+")
_SHAPE = Shape(re.compile(r"[^<\n]+"), "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def read(source: Source, sink: Sink) -> Reading:
    """One call; in JSON too, which these models fall back to."""
    if (yield from source.peek("{")):
        yield from read_object(source, sink)
        return
    name = yield from source.word(_NAME)
    sink.name(name)
    yield from read_pairs(source, sink, sink.tools.get(name), _SHAPE, hermes.END)
    sink.end()


def _write(lark: Lark, name: str, schema: Schema) -> str:
    return f"{plain(name)} {_BREAK} {write_tagged(lark, schema, _TAGS)}"


_BREAK = '"\\n"?'  # some versions write one between tags
_TAGS = Tags(
    opening=_SHAPE.key,
    middle=_SHAPE.key_end,
    value=_SHAPE.value,
    closing=_SHAPE.value_end,
    stop=_SHAPE.value_end,
    keys=_SHAPE.keys,
    blank=_BREAK,
)
_LAYOUT = Layout(
    _write,
    again="\n",
    names=_NAME,
    marks=(_SHAPE.key, _SHAPE.key_end, _SHAPE.value, _SHAPE.value_end),
)

DIALECT = Dialect("glm", (Form(hermes.START, read, hermes.END, layouts=(_LAYOUT,)),))

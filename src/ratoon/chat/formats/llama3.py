"""Llama 3.x: a JSON object in place of text."""

from __future__ import annotations

import re
from functools import partial

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_arguments, read_members, write_object
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

_NAME = re.compile(r"[^\s<>{]+")
_TAG = "<|python_tag|>"
# What may stand between two calls.
_SEPARATORS = (";", "; ", ";\n")

_LAYOUT = Layout(
    write_object("parameters", is_opened=True), before='"name": "', again="; ", waits=True
)


def read_function(source: Source, sink: Sink) -> Reading:
    """A call that names its function in a tag, with the arguments as JSON."""
    sink.name((yield from source.word(_NAME)))
    yield from source.need(">")
    yield from read_arguments(source, sink)
    sink.end()


def _write_tagged(lark: Lark, name: str, schema: Schema) -> str:
    return f"{plain(f'{name}>')} {lark.arguments(schema)}"


_TAGGED = Layout(_write_tagged, again="", names=_NAME)


def _form(start: str) -> Form:
    read = partial(read_members, is_guess=True)
    return Form(start + "{", read, lead="{", is_opening=True, layouts=(_LAYOUT,))


DIALECT = Dialect(
    "llama3",
    (
        *map(_form, ("", _TAG, *_SEPARATORS)),
        Form("<function=", read_function, "</function>", layouts=(_TAGGED,)),
    ),
)

"""Llama 3.x: a JSON object in place of text."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_arguments, read_rest, write_object
from ratoon.chat.formats.literal import JSON, Literals
from ratoon.chat.formats.sink import Sink, sendable
from ratoon.chat.formats.source import Broken, Reading, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

_NAME = re.compile(r"[^\s<>{]+")
_TAG = "<|python_tag|>"
# What may stand between two calls.
_SEPARATORS = (";", "; ", ";\n")

# Up to the name; some models tell first that it is a function's.
_HEADS = ('"name": "', '"type": "function", "name": "')
_LAYOUTS = tuple(
    Layout(write_object("parameters", is_opened=True), before=head, again="; ", waits=True)
    for head in _HEADS
)


def read(source: Source, sink: Sink) -> Reading:
    """A call behind its opening bracket; no markup tells it from data."""
    if not (yield from source.signal(*_HEADS)):
        raise Broken
    name = yield from Literals(source, sink, JSON).string('"')
    sink.name(sendable(name), is_guess=True)
    yield from read_rest(source, sink)


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
    return Form(start + "{", read, lead="{", is_opening=True, layouts=_LAYOUTS)


DIALECT = Dialect(
    "llama3",
    (
        *map(_form, ("", _TAG, *_SEPARATORS)),
        Form("<function=", read_function, "</function>", layouts=(_TAGGED,)),
    ),
)

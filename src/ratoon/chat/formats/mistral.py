"""Mistral: an array of JSON objects, or a name before its arguments."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_arguments, read_objects, write_object
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

START = "[TOOL_CALLS]"

_CALL_ID = "[CALL_ID]"
_ARGS = "[ARGS]"

_NAME = re.compile(r"[\w.:/-]+")
_ID = re.compile(r"\w+")


def read(source: Source, sink: Sink) -> Reading:
    """All objects of an array, or the one call that is named."""
    if (yield from source.peek("[", "{")):
        yield from read_objects(source, sink)
        return
    name = yield from source.word(_NAME)
    mark = yield from source.need(_CALL_ID, _ARGS, "{")
    if mark == _CALL_ID:
        yield from source.word(_ID)
        mark = yield from source.need(_ARGS, "{")
    sink.name(name)
    yield from read_arguments(source, sink, is_open=mark == "{")
    sink.end()


def _write_named(lark: Lark, name: str, schema: Schema) -> str:
    call_id = f"({lark.text(_CALL_ID)} {_WRITTEN_ID})?"
    return f"{plain(name)} {call_id} {lark.text(_ARGS)} {lark.arguments(schema)}"


_WRITTEN_ID = "/[a-zA-Z0-9]{9}/"
_ID_HEAD, _ID_TAIL = plain(', "id": "'), plain('"')
_ARRAY = Layout(
    write_object("arguments", tail=f"({_ID_HEAD} {_WRITTEN_ID} {_ID_TAIL})?"),
    before="[",
    between=", ",
    after="]",
)
_NAMES = Layout(_write_named, again="", names=_NAME, marks=(_CALL_ID, _ARGS))

DIALECT = Dialect("mistral", (Form(START, read, layouts=(_NAMES, _ARRAY)),))

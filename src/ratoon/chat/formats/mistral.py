"""Mistral: an array of JSON objects, or a name before its arguments."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_arguments, read_objects
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source

START = "[TOOL_CALLS]"

_NAME = re.compile(r"[\w.:/-]+")
_ID = re.compile(r"\w+")


def read(source: Source, sink: Sink) -> Reading:
    """All objects of an array, or the one call that is named."""
    if (yield from source.peek("[", "{")):
        yield from read_objects(source, sink)
        return
    name = yield from source.word(_NAME)
    mark = yield from source.need("[CALL_ID]", "[ARGS]", "{")
    if mark == "[CALL_ID]":
        yield from source.word(_ID)
        mark = yield from source.need("[ARGS]", "{")
    sink.name(name)
    yield from read_arguments(source, sink, is_open=mark == "{")
    sink.end()


DIALECT = Dialect("mistral", (Form(START, read),))

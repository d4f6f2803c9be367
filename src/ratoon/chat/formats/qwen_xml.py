"""Qwen3-Coder: a function tag around one tag for each argument."""

from __future__ import annotations

import re

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_object
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.formats.tagged import Shape, read_pairs

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_NAME = re.compile(r"[^<>\n]+")
_SHAPE = Shape("<parameter=", ">", "", "</parameter>", has_line_ends=True)


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


DIALECT = Dialect(
    "qwen_xml",
    (
        Form(hermes.START, read, hermes.END),
        Form("<seed:tool_call>", read, "</seed:tool_call>"),
        # The outer tag is sometimes left out.
        Form(_FUNCTION, read_function),
    ),
)

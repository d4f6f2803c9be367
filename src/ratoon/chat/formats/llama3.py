"""Llama 3.x: a JSON object in place of text."""

from __future__ import annotations

import re
from functools import partial

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_arguments, read_members
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source

_NAME = re.compile(r"[^\s<>{]+")
_TAG = "<|python_tag|>"
# What may stand between two calls.
_SEPARATORS = (";", "; ", ";\n")


def read_function(source: Source, sink: Sink) -> Reading:
    """A call that names its function in a tag, with the arguments as JSON."""
    sink.name((yield from source.word(_NAME)))
    yield from source.need(">")
    yield from read_arguments(source, sink)
    sink.end()


def _form(start: str) -> Form:
    return Form(start + "{", partial(read_members, is_guess=True), is_opening=True)


DIALECT = Dialect(
    "llama3",
    (
        *map(_form, ("", _TAG, *_SEPARATORS)),
        Form("<function=", read_function, "</function>"),
    ),
)

"""GLM 4.x: the name, then a pair of tags for each argument."""

from __future__ import annotations

import re

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_object
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.formats.tagged import Shape, read_pairs

_NAME = re.compile(r"[\w.:/-]+")
_SHAPE = Shape("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def read(source: Source, sink: Sink) -> Reading:
    """One call; in JSON too, which these models fall back to."""
    if (yield from source.peek("{")):
        yield from read_object(source, sink)
        return
    name = yield from source.word(_NAME)
    sink.name(name)
    yield from read_pairs(source, sink, sink.tools.get(name), _SHAPE, hermes.END)
    sink.end()


DIALECT = Dialect("glm", (Form(hermes.START, read, hermes.END),))

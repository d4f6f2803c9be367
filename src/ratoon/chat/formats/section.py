"""Sections of calls, each a head with the name and a JSON object of arguments."""

from __future__ import annotations

from collections.abc import Callable

from ratoon.chat.formats.json_text import read_arguments
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, ReadingWord, Source

ReadName = Callable[[Source], ReadingWord]


def read_section(
    source: Source, sink: Sink, start: str, read_name: ReadName, ends: tuple[str, ...]
) -> Reading:
    """Calls between ``start`` and all of the ``ends``, of which only the last one must come.
    ``read_name`` reads what stands in front of the arguments."""
    yield from source.need(start)
    while True:
        sink.name((yield from read_name(source)))
        yield from read_arguments(source, sink)
        sink.end()
        while (yield from source.need(*ends)) != ends[-1]:
            pass
        if not (yield from source.take(start)):
            return

"""Calls whose arguments stand one by one between tags, as bare text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ratoon.chat.formats.json_text import dump
from ratoon.chat.formats.schema import is_text, property_schema, typed
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Broken, Reading, Source


@dataclass(frozen=True, slots=True)
class Shape:
    """``keys``: what a key may be. ``key`` and ``key_end`` stand around an argument's key,
    ``value`` and ``value_end`` around its value. ``has_line_ends``: one line break on each side of
    a value belongs to the markup."""

    keys: re.Pattern[str]
    key: str
    key_end: str
    value: str
    value_end: str
    has_line_ends: bool = False


def read_pairs(
    source: Source, sink: Sink, schema: Mapping[str, Any] | None, shape: Shape, end: str
) -> Reading:
    """All arguments, up to the end, which is left."""
    sink.hold("{")
    separator = ""
    while (yield from source.peek(shape.key, end)) == shape.key:
        yield from source.need(shape.key)
        key = (yield from source.word(shape.keys)).strip()
        yield from source.need(shape.key_end)
        if shape.value:
            yield from source.need(shape.value)
        sink.hold(f"{separator}{dump(key)}: ")
        yield from _value(source, sink, property_schema(schema, key), shape)
        separator = ", "
    if not (yield from source.peek(end)):
        raise Broken
    sink.write("}")


def _value(source: Source, sink: Sink, schema: object, shape: Shape) -> Reading:
    """A string goes out as it comes; anything else is known by all of its text only."""
    parts: list[str] = []
    into: Callable[[str], object] = parts.append
    if is_text(schema):
        sink.write('"')
        into = sink.write_text
    trimmed = _Trimmed(into) if shape.has_line_ends else into
    yield from source.until(shape.value_end, into=trimmed)
    source.at += len(shape.value_end)
    sink.write('"' if is_text(schema) else dump(typed("".join(parts), schema)))


class _Trimmed:
    """Passes a text on in pieces without the line breaks that it begins and ends with, one each."""

    def __init__(self, into: Callable[[str], object]) -> None:
        self._into = into
        self._is_first = True
        self._held = ""

    def __call__(self, text: str) -> None:
        if self._is_first:
            self._is_first = False
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        self._into(text.removesuffix("\n"))

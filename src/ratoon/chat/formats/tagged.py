"""Calls whose arguments stand one by one between tags, as bare text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratoon.chat.formats.call import Call, Tools
from ratoon.chat.formats.json_text import dump
from ratoon.chat.formats.schema import is_text, property_schema, typed
from ratoon.chat.stop import n_partial


@dataclass(frozen=True, slots=True)
class Shape:
    """``head`` captures the name. ``pair`` captures key and value; ``opened`` does so for one
    without its ``closing`` text. ``key`` begins a pair. ``tail`` is what may follow the last one.
    ``has_line_ends``: one line break on each side of a value belongs to the markup."""

    head: re.Pattern[str]
    pair: re.Pattern[str]
    opened: re.Pattern[str]
    key: str
    closing: str
    tail: str
    has_line_ends: bool


def parse_tagged(body: str, tools: Tools, shape: Shape, *, is_cut: bool) -> list[Call] | None:
    """One call."""
    head = shape.head.match(body)
    if head is None:
        return None
    name = head[1].strip()
    schema = tools.get(name)
    arguments: dict[str, object] = {}
    at = head.end()
    while pair := shape.pair.match(body, at):
        key = pair[1].strip()
        arguments[key] = typed(_value(pair[2], shape), property_schema(schema, key))
        at = pair.end()
    rest = body[at:].strip()
    if not is_cut or (rest and rest == shape.tail):
        text = dump(arguments) if rest in ("", shape.tail) else None
    else:
        text = _cut(arguments, body[at:], schema, shape)
    return None if text is None else [Call(name, text)]


def _cut(
    arguments: dict[str, object], rest: str, schema: Mapping[str, Any] | None, shape: Shape
) -> str | None:
    """The beginning of the arguments' JSON text; None where the rest is no beginning of a pair."""
    text = dump(arguments)
    if text is None:
        return None
    text = text[:-1] if arguments else ""
    opened = shape.opened.fullmatch(rest)
    if opened is None:
        is_begun = rest.startswith(shape.key) or shape.key.startswith(rest)
        return text if is_begun or shape.tail.startswith(rest) else None
    key, value = opened[1].strip(), opened[2]
    if not is_text(property_schema(schema, key)):
        return text
    # A line break at the end may belong to the markup: it is left out with the tag it precedes.
    value = _value(value[: len(value) - n_partial(value, shape.closing)], shape)
    return f"{text or '{'}{', ' if arguments else ''}{dump(key)}: {(dump(value) or '')[:-1]}"


def _value(text: str, shape: Shape) -> str:
    return text.removeprefix("\n").removesuffix("\n") if shape.has_line_ends else text

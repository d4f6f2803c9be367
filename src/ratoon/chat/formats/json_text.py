"""Calls written as JSON objects with ``name`` and ``arguments`` or ``parameters``."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NoReturn

from ratoon.chat.formats.call import Write
from ratoon.chat.formats.literal import JSON, Literals, finite
from ratoon.chat.formats.sink import Nowhere, Sink, sendable
from ratoon.chat.formats.source import Broken, Reading, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema, to_text

_ARGUMENTS = ("arguments", "parameters")
_SEPARATORS = (",", ";")


def read_object(source: Source, sink: Sink) -> Reading:
    """The call that one object is."""
    yield from source.need("{")
    yield from _read_members(source, sink, bool((yield from source.take("}"))))


def read_rest(source: Source, sink: Sink) -> Reading:
    """What is left of a call behind its name."""
    yield from _read_members(source, sink, (yield from source.need(",", "}")) == "}")


def _read_members(source: Source, sink: Sink, is_closed: bool) -> Reading:
    literals = Literals(source, sink, JSON)
    has_arguments = False
    while not is_closed:
        key = yield from literals.string()
        yield from source.need(":")
        if key == "name":
            sink.name(sendable((yield from literals.string())))
        elif key in _ARGUMENTS and not has_arguments:
            has_arguments = True
            yield from read_arguments(source, sink)
        else:
            yield from Literals(source, Nowhere(), JSON).value()
        mark = yield from source.need(",", "}")
        is_closed = mark == "}" or bool((yield from source.take("}")))
    if not has_arguments:
        sink.write("{}")
    sink.end()


def read_arguments(source: Source, sink: Sink, *, is_open: bool = False) -> Reading:
    """The arguments as a JSON object; ``is_open``: behind its opening bracket."""
    if not is_open:
        yield from source.need("{")
    yield from Literals(source, sink, JSON).arguments(":", "}")


def read_objects(source: Source, sink: Sink) -> Reading:
    """One object or an array of them."""
    read = partial(read_object, source, sink)
    if (yield from source.peek("[", "{")) == "{":
        yield from read()
        return
    yield from source.need("[")
    yield from read()
    while (yield from source.need(*_SEPARATORS, "]")) != "]":
        yield from read()


def read_all_objects(source: Source, sink: Sink) -> Reading:
    """Objects one after another, or an array of them, in front of some end."""
    while True:
        yield from read_objects(source, sink)
        yield from source.take(*_SEPARATORS)
        if not (yield from source.peek("{", "[")):
            return


def write_object(key: str, *, is_opened: bool = False, tail: str = "") -> Write:
    """Writes an object with ``name`` and ``key``; the name's opening quote may be there already.
    ``tail`` is the grammar of what may follow the arguments."""

    def write(lark: Lark, name: str, schema: Schema) -> str:
        head = to_text(name)[1:] if is_opened else '{"name": ' + to_text(name)
        middle = plain(head + f', "{key}": ')
        return f"{middle} {lark.arguments(schema)} {tail} {plain('}')}"

    return write


def dump(value: object) -> str:
    """Canonical JSON text; raises Broken where JSON can't express the value."""
    try:
        return sendable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        raise Broken from None


def load(text: str) -> Any:
    """The JSON value. Control characters in strings are let pass, and a number that is too large
    becomes the largest there is, as JSON can't carry on an infinite one.

    Raises ValueError or RecursionError.
    """
    return _DECODER.decode(text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=finite)

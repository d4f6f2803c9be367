"""Calls written as JSON objects with ``name`` and ``arguments`` or ``parameters``."""

from __future__ import annotations

import json
from functools import partial
from typing import NoReturn

from ratoon.chat.formats.literal import JSON, Literals
from ratoon.chat.formats.sink import Nowhere, Sink, sendable
from ratoon.chat.formats.source import Broken, Reading, Source

_ARGUMENTS = ("arguments", "parameters")
_SEPARATORS = (",", ";")


def read_object(source: Source, sink: Sink, *, is_guess: bool = False) -> Reading:
    """The call that one object is."""
    yield from source.need("{")
    yield from read_members(source, sink, is_guess=is_guess)


def read_members(source: Source, sink: Sink, *, is_guess: bool = False) -> Reading:
    """The call that one object is, behind its opening bracket."""
    literals = Literals(source, sink, JSON)
    has_arguments = False
    while not (yield from source.take("}")):
        key = yield from literals.string()
        yield from source.need(":")
        if key == "name":
            sink.name(sendable((yield from literals.string())), is_guess=is_guess)
        elif key in _ARGUMENTS and not has_arguments:
            has_arguments = True
            yield from read_arguments(source, sink)
        else:
            yield from Literals(source, Nowhere(), JSON).value()
        if (yield from source.need(",", "}")) == "}":
            break
    if not has_arguments:
        sink.write("{}")
    sink.end()


def read_arguments(source: Source, sink: Sink, *, is_open: bool = False) -> Reading:
    """The arguments as a JSON object; ``is_open``: behind its opening bracket."""
    if not is_open:
        yield from source.need("{")
    yield from Literals(source, sink, JSON).arguments(":", "}")


def read_objects(source: Source, sink: Sink, *, is_guess: bool = False) -> Reading:
    """One object or an array of them."""
    read = partial(read_object, source, sink, is_guess=is_guess)
    if (yield from source.peek("[", "{")) == "{":
        yield from read()
        return
    yield from source.need("[")
    yield from read()
    while (yield from source.need(*_SEPARATORS, "]")) != "]":
        yield from read()


def read_all_objects(source: Source, sink: Sink, *, is_guess: bool = False) -> Reading:
    """Objects one after another, or an array of them, in front of some end."""
    while True:
        yield from read_objects(source, sink, is_guess=is_guess)
        yield from source.take(*_SEPARATORS)
        if not (yield from source.peek("{", "[")):
            return


def dump(value: object) -> str:
    """Canonical JSON text; raises Broken where JSON can't express the value."""
    try:
        return sendable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        raise Broken from None


def load(text: str) -> object:
    """The JSON value; control characters in strings are let pass.

    Raises ValueError or RecursionError.
    """
    value: object = json.loads(text, strict=False, parse_constant=_refuse)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

"""Calls written as a programming language writes them: a name, then arguments in brackets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratoon.chat.formats.literal import PYTHON, Literals, Notation
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.grammar import literal as grammar
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

NAMES = re.compile(r"[A-Za-z_][\w.-]*")


@dataclass(frozen=True, slots=True)
class Syntax:
    """``opening`` key ``equals`` value, ... ``closing``, with a name in front of it.

    ``module``    what the name may begin with and is left out
    ``is_guess``  no markup tells such a call from text
    """

    notation: Notation
    opening: str = "("
    equals: str = "="
    closing: str = ")"
    module: str = ""
    is_guess: bool = False


_PYTHON_VALUES = grammar.Notation(constants={"true": "True", "false": "False", "null": "None"})


def write_python(lark: Lark, name: str, schema: Schema) -> str:
    """The grammar of one call."""
    arguments = grammar.Literals(lark, schema, _PYTHON_VALUES).arguments("=")
    return f"{plain(f'{name}(')} {arguments} {plain(')')}"


def read_calls(source: Source, sink: Sink, syntax: Syntax = Syntax(PYTHON)) -> Reading:
    """One call, or several in square brackets."""
    is_list = yield from source.take("[")
    yield from read_call(source, sink, syntax)
    if is_list:
        while (yield from source.need(",", "]")) != "]":
            yield from read_call(source, sink, syntax)


def read_call(source: Source, sink: Sink, syntax: Syntax) -> Reading:
    """One call."""
    name = yield from source.word(NAMES)
    yield from source.need(syntax.opening)
    sink.name(name.removeprefix(syntax.module), is_guess=syntax.is_guess)
    yield from Literals(source, sink, syntax.notation).arguments(syntax.equals, syntax.closing)
    sink.end()


def show_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in Python's notation."""
    written = ", ".join(f"{key}={_literal(value)}" for key, value in arguments.items())
    return f"{name}({written})"


def _literal(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f"{_literal(key)}: {_literal(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)

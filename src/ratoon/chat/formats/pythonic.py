"""Calls written as a programming language writes them: a name, then arguments in brackets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratoon.chat.formats.call import Call
from ratoon.chat.formats.literal import Broken, Ended, Reader
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.literal import Literals, Notation
from ratoon.chat.grammar.schema import Schema


@dataclass(frozen=True, slots=True)
class Syntax:
    """``prefix`` name ``opening`` key ``equals`` value, ... ``closing``."""

    prefix: str
    opening: str
    equals: str
    closing: str


PYTHON = Syntax("", "(", "=", ")")


NAMES = re.compile(r"[A-Za-z_][\w.-]*")
_PYTHON_VALUES = Notation(constants={"true": "True", "false": "False", "null": "None"})


def write_python(lark: Lark, name: str, schema: Schema) -> str:
    """The grammar of one call."""
    arguments = Literals(lark, schema, _PYTHON_VALUES).arguments(PYTHON.equals)
    return f"{plain(name + PYTHON.opening)} {arguments} {plain(PYTHON.closing)}"


def parse_pythonic(reader: Reader, syntax: Syntax, *, is_cut: bool) -> list[Call] | None:
    """One call, or several in square brackets."""
    calls: list[Call] = []
    name = ""
    try:
        is_list = reader.take("[")
        while not calls or (is_list and reader.take(",")):
            reader.need(syntax.prefix)
            called = reader.word(NAMES)
            reader.need(syntax.opening)
            name, reader.json = called, ""
            reader.pairs(syntax.equals, syntax.closing)
            calls.append(Call(name, reader.json))
            name = ""
        if is_list:
            reader.need("]")
    except Broken:
        return None
    except Ended:
        if not is_cut:
            return None
        # The bare opening of an object tells no argument.
        begun = [Call(name, reader.json.removesuffix("{"))] if name else []
        return calls + begun or None
    return calls if reader.is_at_end else None

"""Calls written as a programming language writes them: a name, then arguments in brackets."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratoon.chat.formats.literal import PYTHON, Literals, Notation
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


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


def read_calls(source: Source, sink: Sink, syntax: Syntax = Syntax(PYTHON)) -> Reading:
    """One call, or several in square brackets."""
    is_list = yield from source.take("[")
    yield from read_call(source, sink, syntax)
    if is_list:
        while (yield from source.need(",", "]")) != "]":
            yield from read_call(source, sink, syntax)


def read_call(source: Source, sink: Sink, syntax: Syntax) -> Reading:
    """One call."""
    name = yield from source.word(_NAME)
    yield from source.need(syntax.opening)
    sink.name(name.removeprefix(syntax.module), is_guess=syntax.is_guess)
    yield from Literals(source, sink, syntax.notation).arguments(syntax.equals, syntax.closing)
    sink.end()

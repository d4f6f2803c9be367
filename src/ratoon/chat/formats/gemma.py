"""Gemma 1 to 3: calls in fenced blocks. Gemma 4: special tokens and quotes of its own."""

from __future__ import annotations

from functools import partial

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_all_objects
from ratoon.chat.formats.literal import PYTHON, Notation
from ratoon.chat.formats.pythonic import Syntax, read_call, read_calls
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source

_FENCE = "```"
_QUOTE = '<|"|>'
_GEMMA_4 = Syntax(Notation({_QUOTE: _QUOTE}), "{", ":", "}")
_CODE = Syntax(PYTHON, module="default_api.", is_guess=True)
_PRINT = "print("


def read(source: Source, sink: Sink) -> Reading:
    """The one call between Gemma 4's tokens."""
    yield from source.need("call:")
    yield from read_call(source, sink, _GEMMA_4)


def read_code(source: Source, sink: Sink) -> Reading:
    """Calls in a fenced block of Python; printing their results is what they are for anyway."""
    is_printed = yield from source.take(_PRINT)
    yield from read_calls(source, sink, _CODE)
    if is_printed:
        yield from source.need(")")


DIALECT = Dialect(
    "gemma",
    (
        Form("<|tool_call>", read, "<tool_call|>"),
        Form(f"{_FENCE}tool_code\n", read_code, _FENCE),
        Form(f"{_FENCE}json\n", partial(read_all_objects, is_guess=True), _FENCE),
    ),
)

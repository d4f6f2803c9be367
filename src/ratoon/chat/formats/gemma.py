"""Gemma 1 to 3: calls in fenced blocks. Gemma 4: special tokens and quotes of its own."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_object, read_rest, write_object
from ratoon.chat.formats.literal import PYTHON, Notation
from ratoon.chat.formats.pythonic import NAMES, Syntax, read_call, read_calls, write_python
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.grammar import literal as grammar
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema, to_text

_FENCE = "```"
_QUOTE = '<|"|>'
_GEMMA_4 = Syntax(Notation({_QUOTE: _QUOTE}), "{", ":", "}")
_CODE = Syntax(PYTHON, module="default_api.", is_guess=True)
_PRINT = "print("
_NAME = '{"name": "'


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


def read_json(source: Source, sink: Sink) -> Reading:
    """Calls in a fenced block of JSON: it is data unless it begins with the name of a tool."""
    names = {_NAME + to_text(name)[1:]: name for name in sink.tools}
    sink.name(names.get((yield from source.signal(*names)), ""))
    yield from read_rest(source, sink)
    while (yield from source.peek("{")):
        yield from read_object(source, sink)


def _write(lark: Lark, name: str, schema: Schema) -> str:
    arguments = grammar.Literals(lark, schema, _VALUES).arguments(_GEMMA_4.equals)
    return f"{plain(f'call:{name}{_GEMMA_4.opening}')} {arguments} {plain('}')}"


_VALUES = grammar.Notation(comma=",", colon=":", quote=_QUOTE, has_bare_keys=True)
_IN_TOKENS = Layout(_write, again="", names=NAMES, marks=(_QUOTE,))
_IN_JSON = tuple(
    Layout(
        write_object(key, is_opened=True),
        before=_NAME,
        between=f"\n{_NAME}",
        after="\n",
        again="\n",
        waits=True,
        is_guess=True,
    )
    for key in ("arguments", "parameters")
)
_IN_CODE = Layout(write_python, after="\n", again="\n", names=NAMES)

DIALECT = Dialect(
    "gemma",
    (
        Form("<|tool_call>", read, "<tool_call|>", layouts=(_IN_TOKENS,)),
        Form(f"{_FENCE}tool_code\n", read_code, _FENCE, layouts=(_IN_CODE,)),
        Form(f"{_FENCE}json\n", read_json, _FENCE, layouts=_IN_JSON),
    ),
)

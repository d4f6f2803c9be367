"""Gemma 1 to 3: calls in fenced blocks. Gemma 4: special tokens and quotes of its own."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.json_text import QUOTES, only_declared, parse_declared
from ratoon.chat.formats.literal import PYTHON_QUOTES, Reader
from ratoon.chat.formats.pythonic import NAMES, PYTHON, Syntax, parse_pythonic, write_python
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.literal import Literals, Notation
from ratoon.chat.grammar.schema import Schema

_FENCE = "```"
_QUOTE = '<|"|>'
_QUOTES = {_QUOTE: _QUOTE}
_GEMMA_4 = Syntax("call:", "{", ":", "}")
_PRINTED = re.compile(r"\s*print\((.*)\)\s*", re.DOTALL)


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """The one call between Gemma 4's tokens."""
    return parse_pythonic(Reader(body, _QUOTES), _GEMMA_4, is_cut=is_cut)


def parse_code(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """Calls in a fenced block of Python; printing their results is what they are for anyway."""
    printed = _PRINTED.fullmatch(body)
    reader = Reader(printed[1] if printed else body, PYTHON_QUOTES)
    calls = parse_pythonic(reader, PYTHON, is_cut=is_cut)
    called = [Call(call.name.removeprefix("default_api."), call.arguments) for call in calls or ()]
    return only_declared(called or None, tools)


def _write(lark: Lark, name: str, schema: Schema) -> str:
    arguments = Literals(lark, schema, _VALUES).arguments(_GEMMA_4.equals)
    return f"{plain(f'{_GEMMA_4.prefix}{name}{_GEMMA_4.opening}')} {arguments} {plain('}')}"


_VALUES = Notation(comma=",", colon=":", quote=_QUOTE, has_bare_keys=True)
_TOKENS = Layout(_write, again="", names=NAMES, marks=(_QUOTE,))
_CODE = Layout(write_python, after="\n", again="\n", names=NAMES)

DIALECT = Dialect(
    "gemma",
    (
        Form("<|tool_call>", parse, "<tool_call|>", quotes=_QUOTES, layouts=(_TOKENS,)),
        Form(f"{_FENCE}tool_code\n", parse_code, _FENCE, quotes=PYTHON_QUOTES, layouts=(_CODE,)),
        Form(f"{_FENCE}json\n", parse_declared, _FENCE, quotes=QUOTES),
    ),
)

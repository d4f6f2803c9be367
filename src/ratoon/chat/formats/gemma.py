"""Gemma 1 to 3: calls in fenced blocks. Gemma 4: special tokens and quotes of its own."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Call, Dialect, Form, Tools
from ratoon.chat.formats.json_text import QUOTES, only_declared, parse_declared
from ratoon.chat.formats.literal import PYTHON_QUOTES, Reader
from ratoon.chat.formats.pythonic import PYTHON, Syntax, parse_pythonic

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


DIALECT = Dialect(
    "gemma",
    (
        Form("<|tool_call>", parse, "<tool_call|>", quotes=_QUOTES),
        Form(f"{_FENCE}tool_code\n", parse_code, _FENCE, quotes=PYTHON_QUOTES),
        Form(f"{_FENCE}json\n", parse_declared, _FENCE, quotes=QUOTES),
    ),
)

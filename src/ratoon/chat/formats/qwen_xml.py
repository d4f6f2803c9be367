"""Qwen3-Coder: a function tag around one tag for each argument."""

from __future__ import annotations

import re

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Call, Dialect, Form, Tools
from ratoon.chat.formats.tagged import Shape, parse_tagged

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER_END = "</parameter>"
_QUOTES = {"<parameter=": _PARAMETER_END}
_SHAPE = Shape(
    head=re.compile(r"\s*<function=([^<>\n]+)>\s*"),
    pair=re.compile(r"<parameter=([^<>\n]+)>(.*?)</parameter>\s*", re.DOTALL),
    opened=re.compile(r"<parameter=([^<>\n]+)>(.*)", re.DOTALL),
    key="<parameter=",
    closing=_PARAMETER_END,
    tail=_FUNCTION_END,
    has_line_ends=True,
)


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """One call; in JSON too, which these models fall back to."""
    if body.lstrip().startswith("{"):
        return hermes.parse(body, tools, is_cut=is_cut)
    return parse_tagged(body, tools, _SHAPE, is_cut=is_cut)


DIALECT = Dialect(
    "qwen_xml",
    (
        Form(hermes.START, parse, hermes.END, quotes=_QUOTES),
        Form("<seed:tool_call>", parse, "</seed:tool_call>", quotes=_QUOTES),
        # The outer tag is sometimes left out.
        Form(_FUNCTION, parse, _FUNCTION_END, lead=_FUNCTION, quotes=_QUOTES),
    ),
)

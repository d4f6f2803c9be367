"""Qwen3-Coder: a function tag around one tag for each argument."""

from __future__ import annotations

import re

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.tagged import Shape, parse_tagged
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema
from ratoon.chat.grammar.tagged import Tags, write_tagged

_SEED, _SEED_END = "<seed:tool_call>", "</seed:tool_call>"
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


def _write(lark: Lark, name: str, schema: Schema) -> str:
    return f"{plain(name + '>' + _BREAK)} {write_tagged(lark, schema, _TAGS)}"


_BREAK = "\n"
_NAMES = re.compile(r"[^<>\n]+")
_TAGS = Tags(
    opening="<parameter=",
    middle=">\n",
    closing="\n</parameter>\n",
    stop=_PARAMETER_END,
    keys=_NAMES,
)
_BARE = Layout(_write, names=_NAMES)
_WRAPPED = Layout(
    _write, before="\n" + _FUNCTION, after=_FUNCTION_END + "\n", again="\n", names=_NAMES
)

DIALECT = Dialect(
    "qwen_xml",
    (
        Form(hermes.START, parse, hermes.END, quotes=_QUOTES, layouts=(_WRAPPED,)),
        Form(_SEED, parse, _SEED_END, quotes=_QUOTES, layouts=(_WRAPPED,)),
        # The outer tag is sometimes left out.
        Form(_FUNCTION, parse, _FUNCTION_END, lead=_FUNCTION, quotes=_QUOTES, layouts=(_BARE,)),
    ),
)

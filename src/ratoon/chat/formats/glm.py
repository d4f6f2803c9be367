"""GLM 4.x: the name, then a pair of tags for each argument."""

from __future__ import annotations

import re

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.tagged import Shape, parse_tagged
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema
from ratoon.chat.grammar.tagged import Tags, write_tagged

_VALUE_END = "</arg_value>"
_BREAK = '"\\n"?'  # some versions write one between tags
_SHAPE = Shape(
    head=re.compile(r"\s*([\w.:/-]+)(?=[\s<]|\Z)\s*"),
    pair=re.compile(r"<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL),
    opened=re.compile(r"<arg_key>([^<]+)</arg_key>\s*<arg_value>(.*)", re.DOTALL),
    key="<arg_key>",
    closing=_VALUE_END,
    tail="",
    has_line_ends=False,
)
_NAME_ONLY = re.compile(r"\s*[\w.:/-]*")


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """One call; in JSON too, which these models fall back to."""
    if body.lstrip().startswith("{"):
        return hermes.parse(body, tools, is_cut=is_cut)
    if is_cut and _NAME_ONLY.fullmatch(body):
        return None  # more of the name may have been to come
    return parse_tagged(body, tools, _SHAPE, is_cut=is_cut)


def _write(lark: Lark, name: str, schema: Schema) -> str:
    return f"{plain(name)} {_BREAK} {write_tagged(lark, schema, _TAGS)}"


_QUOTES = {"<arg_value>": _VALUE_END}
_TAGS = Tags(
    opening="<arg_key>",
    middle="</arg_key>",
    value="<arg_value>",
    closing=_VALUE_END,
    stop=_VALUE_END,
    keys=re.compile(r"[^<\n]+"),
    blank=_BREAK,
)
_LAYOUT = Layout(
    _write,
    again="\n",
    names=re.compile(r"[\w.:/-]+"),
    marks=("<arg_key>", "</arg_key>", "<arg_value>", _VALUE_END),
)

DIALECT = Dialect(
    "glm", (Form(hermes.START, parse, hermes.END, quotes=_QUOTES, layouts=(_LAYOUT,)),)
)

"""Kimi K2: a section of calls; a call's id carries its name."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.json_text import QUOTES
from ratoon.chat.formats.section import parse_section
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

START = "<|tool_calls_section_begin|>"
END = "<|tool_calls_section_end|>"

_BEGIN = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_CLOSE = "<|tool_call_end|>"

_HEAD = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([^\s<]+?)(?::\d+)?\s*"
    r"<\|tool_call_argument_begin\|>\s*"
)
_TAIL = re.compile(r"\s*<\|tool_call_end\|>\s*")


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """All calls of a section."""
    return parse_section(body, _HEAD, _TAIL, is_cut=is_cut)


def _write(lark: Lark, name: str, schema: Schema) -> str:
    head = f"{lark.text(_BEGIN)} {plain(f'functions.{name}:')} /[0-9]{{1,3}}/"
    return f"{head} {lark.text(_ARGUMENTS)} {lark.arguments(schema)} {lark.text(_CLOSE)}"


_LAYOUT = Layout(
    _write, between="", names=re.compile(r"[^\s<]+"), marks=(_BEGIN, _ARGUMENTS, _CLOSE)
)

DIALECT = Dialect("kimi", (Form(START, parse, END, quotes=QUOTES, layouts=(_LAYOUT,)),))

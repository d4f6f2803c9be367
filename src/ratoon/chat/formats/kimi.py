"""Kimi K2: a section of calls; a call's id carries its name."""

from __future__ import annotations

import re
from functools import partial

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.section import read_section
from ratoon.chat.formats.source import ReadingWord, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

START = "<|tool_calls_section_begin|>"
END = "<|tool_calls_section_end|>"

_BEGIN = "<|tool_call_begin|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"
_CLOSE = "<|tool_call_end|>"

_ID = re.compile(r"[^\s<]+")
_COUNT = re.compile(r":\d+\Z")


def _name(source: Source) -> ReadingWord:
    id = yield from source.word(_ID)
    yield from source.need(_ARGUMENTS)
    return _COUNT.sub("", id).removeprefix("functions.")


def _write(lark: Lark, name: str, schema: Schema) -> str:
    head = f"{lark.text(_BEGIN)} {plain(f'functions.{name}:')} /[0-9]{{1,3}}/"
    return f"{head} {lark.text(_ARGUMENTS)} {lark.arguments(schema)} {lark.text(_CLOSE)}"


_read = partial(read_section, start=_BEGIN, read_name=_name, ends=(_CLOSE,))
_LAYOUT = Layout(_write, between="", names=_ID, marks=(_BEGIN, _ARGUMENTS, _CLOSE))

DIALECT = Dialect(
    "kimi", (Form(START, _read, END, layouts=(_LAYOUT,)),), call_id="functions.{name}:{n}"
)

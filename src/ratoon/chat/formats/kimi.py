"""Kimi K2: a section of calls; a call's id carries its name."""

from __future__ import annotations

import re
from functools import partial

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.section import read_section
from ratoon.chat.formats.source import ReadingWord, Source

START = "<|tool_calls_section_begin|>"
END = "<|tool_calls_section_end|>"

_ID = re.compile(r"[^\s<]+")
_COUNT = re.compile(r":\d+\Z")


def _name(source: Source) -> ReadingWord:
    id = yield from source.word(_ID)
    yield from source.need("<|tool_call_argument_begin|>")
    return _COUNT.sub("", id).removeprefix("functions.")


_read = partial(
    read_section, start="<|tool_call_begin|>", read_name=_name, ends=("<|tool_call_end|>",)
)

DIALECT = Dialect("kimi", (Form(START, _read, END),), call_id="functions.{name}:{n}")

"""DeepSeek V3, R1 and V3.1: a section of calls between special tokens."""

from __future__ import annotations

import re

from ratoon.chat.formats.call import Call, Dialect, Form, Tools
from ratoon.chat.formats.json_text import QUOTES
from ratoon.chat.formats.section import parse_section

START = "<｜tool▁calls▁begin｜>"
END = "<｜tool▁calls▁end｜>"

# V3 and R1 write the kind of tool before its name and fence the arguments; V3.1 does neither.
_HEAD = re.compile(
    r"<｜tool▁call▁begin｜>\s*(?:function<｜tool▁sep｜>)?\s*([^\s<`{]+)\s*"
    r"(?:<｜tool▁sep｜>|```json\s)\s*"
    r"(?:(?!\Z)|(?<!function<｜tool▁sep｜>))"  # cut off there, it may have been the kind
)
_TAIL = re.compile(r"\s*(?:```)?\s*<｜tool▁call▁end｜>\s*")


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """All calls of a section."""
    return parse_section(body, _HEAD, _TAIL, is_cut=is_cut)


DIALECT = Dialect("deepseek", (Form(START, parse, END, quotes=QUOTES),))

"""Hermes and Qwen: one JSON object with ``name`` and ``arguments``."""

from __future__ import annotations

from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.json_text import QUOTES, parse_object, write_object

START = "<tool_call>"
END = "</tool_call>"

LAYOUT = Layout(write_object("arguments"), before="\n", after="\n", again="\n")


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """One call."""
    call = parse_object(body, is_cut=is_cut)
    return None if call is None else [call]


DIALECT = Dialect("hermes", (Form(START, parse, END, quotes=QUOTES, layouts=(LAYOUT,)),))

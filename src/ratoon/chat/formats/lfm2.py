"""LFM2: a list of Python calls with keyword arguments."""

from __future__ import annotations

from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.literal import PYTHON_QUOTES, Reader
from ratoon.chat.formats.pythonic import NAMES, PYTHON, parse_pythonic, write_python

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """All calls of a list."""
    return parse_pythonic(Reader(body, PYTHON_QUOTES), PYTHON, is_cut=is_cut)


_LIST = Layout(write_python, before="[", between=", ", after="]", names=NAMES)

DIALECT = Dialect("lfm2", (Form(START, parse, END, quotes=PYTHON_QUOTES, layouts=(_LIST,)),))

"""LFM2: a list of Python calls with keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.pythonic import NAMES, read_calls, show_call, write_python

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"


def show(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A list of calls between its tokens."""
    return f"{START}[{', '.join(show_call(*call) for call in calls)}]{END}"


_LIST = Layout(write_python, before="[", between=", ", after="]", names=NAMES)

DIALECT = Dialect("lfm2", (Form(START, read_calls, END, layouts=(_LIST,)),), show=show)

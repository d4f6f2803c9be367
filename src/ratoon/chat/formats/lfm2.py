"""LFM2: a list of Python calls with keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.pythonic import read_calls, write_call

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"


def write(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A list of calls between its tokens."""
    return f"{START}[{', '.join(write_call(*call) for call in calls)}]{END}"


DIALECT = Dialect("lfm2", (Form(START, read_calls, END),), write=write)

"""LFM2: a list of Python calls with keyword arguments."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.pythonic import read_calls

START = "<|tool_call_start|>"
END = "<|tool_call_end|>"

DIALECT = Dialect("lfm2", (Form(START, read_calls, END),))

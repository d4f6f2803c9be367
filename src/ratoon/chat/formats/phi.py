"""Phi-4-mini: an array of JSON objects between special tokens."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.hermes import ARRAY
from ratoon.chat.formats.json_text import read_all_objects

START = "<|tool_call|>"
END = "<|/tool_call|>"

DIALECT = Dialect("phi", (Form(START, read_all_objects, END, layouts=(ARRAY,)),))

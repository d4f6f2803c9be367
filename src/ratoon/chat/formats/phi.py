"""Phi-4-mini: an array of JSON objects between special tokens."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.granite import ARRAY
from ratoon.chat.formats.json_text import QUOTES, parse_objects

START = "<|tool_call|>"
END = "<|/tool_call|>"

DIALECT = Dialect("phi", (Form(START, parse_objects, END, quotes=QUOTES, layouts=(ARRAY,)),))

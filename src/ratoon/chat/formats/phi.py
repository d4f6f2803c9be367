"""Phi-4-mini: an array of JSON objects between special tokens."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_all_objects

DIALECT = Dialect("phi", (Form("<|tool_call|>", read_all_objects, "<|/tool_call|>"),))

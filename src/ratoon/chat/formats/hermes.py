"""Hermes and Qwen: one JSON object with ``name`` and ``arguments``."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_object

START = "<tool_call>"
END = "</tool_call>"

DIALECT = Dialect("hermes", (Form(START, read_object, END),))

"""Granite: an array of JSON objects behind a special token, or Hermes tags."""

from __future__ import annotations

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_all_objects, read_objects

DIALECT = Dialect(
    "granite",
    (
        Form("<|tool_call|>", read_objects),
        Form(hermes.START, read_all_objects, hermes.END),
    ),
)

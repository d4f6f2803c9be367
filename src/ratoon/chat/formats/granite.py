"""Granite: an array of JSON objects behind a special token, or Hermes tags."""

from __future__ import annotations

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import QUOTES, parse_objects, write_object

ARRAY = Layout(write_object("arguments"), before="[", between=", ", after="]")

DIALECT = Dialect(
    "granite",
    (
        Form("<|tool_call|>", parse_objects, quotes=QUOTES, layouts=(ARRAY,)),
        Form(hermes.START, parse_objects, hermes.END, quotes=QUOTES, layouts=(hermes.LAYOUT,)),
    ),
)

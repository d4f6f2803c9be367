"""Granite: an array of JSON objects behind a special token, or Hermes tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_all_objects, read_objects

START = "<|tool_call|>"


def show(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """An array behind its token."""
    return START + hermes.show_array(calls)


DIALECT = Dialect(
    "granite",
    (
        Form(START, read_objects, layouts=(hermes.ARRAY,)),
        Form(hermes.START, read_all_objects, hermes.END, layouts=(hermes.LAYOUT,)),
    ),
    show=show,
)

"""Llama 3.x: a JSON object in place of text."""

from __future__ import annotations

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import QUOTES, parse_declared, write_object

_TAG = "<|python_tag|>"
# What may stand between two calls.
_SEPARATORS = (";", "; ", ";\n")

_LAYOUT = Layout(
    write_object("parameters", is_opened=True),
    before='"name": "',
    again="; ",
    waits=True,
)


def _form(start: str) -> Form:
    return Form(
        start + "{", parse_declared, lead="{", quotes=QUOTES, is_opening=True, layouts=(_LAYOUT,)
    )


DIALECT = Dialect("llama3", tuple(map(_form, ("", _TAG, *_SEPARATORS))))

"""Llama 3.x: a JSON object in place of text."""

from __future__ import annotations

from functools import partial

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.json_text import read_members

_TAG = "<|python_tag|>"
# What may stand between two calls.
_SEPARATORS = (";", "; ", ";\n")


def _form(start: str) -> Form:
    return Form(start + "{", partial(read_members, is_guess=True), is_opening=True)


DIALECT = Dialect("llama3", tuple(map(_form, ("", _TAG, *_SEPARATORS))))

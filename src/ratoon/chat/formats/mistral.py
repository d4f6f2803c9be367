"""Mistral: an array of JSON objects, or a name before its arguments."""

from __future__ import annotations

import json
import re

from ratoon.chat.formats.call import Call, Dialect, Form, Layout, Tools
from ratoon.chat.formats.json_text import (
    QUOTES,
    dump,
    first_value,
    is_unfinished,
    parse_objects,
    write_object,
)
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

START = "[TOOL_CALLS]"

_CALL_ID = "[CALL_ID]"
_ARGS = "[ARGS]"
_ID = "/[a-zA-Z0-9]{9}/"
_ID_HEAD, _ID_TAIL = plain(', "id": "'), plain('"')

_NAMED = re.compile(r"\s*([\w.:/-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*(?=\{|\Z)")
_QUOTES = {**QUOTES, "[CALL_ID": "]", "[ARGS": "]"}


def parse(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """All objects of an array, or the one call that is named."""
    if body.lstrip().startswith(("[", "{")) and not body.lstrip().startswith("[ARGS]"):
        return parse_objects(body, tools, is_cut=is_cut)
    named = _NAMED.match(body)
    if named is None:
        return None
    rest = body[named.end() :]
    if not rest:
        is_named = is_cut and body.rstrip().endswith("[ARGS]")
        return [Call(named[1], "")] if is_named else None
    try:
        arguments, end = first_value(rest)
    except json.JSONDecodeError as error:
        return [Call(named[1], rest)] if is_cut and is_unfinished(rest, error) else None
    except (ValueError, RecursionError):
        return None
    text = None if rest[end:].strip() else dump(arguments)
    return None if text is None else [Call(named[1], text)]


def _write_named(lark: Lark, name: str, schema: Schema) -> str:
    call_id = f"({lark.text(_CALL_ID)} {_ID})?"
    return f"{plain(name)} {call_id} {lark.text(_ARGS)} {lark.arguments(schema)}"


_ARRAY = Layout(
    write_object("arguments", tail=f"({_ID_HEAD} {_ID} {_ID_TAIL})?"),
    before="[",
    between=", ",
    after="]",
)
_NAMES = Layout(_write_named, again="", names=re.compile(r"[\w.:/-]+"), marks=(_CALL_ID, _ARGS))

DIALECT = Dialect("mistral", (Form(START, parse, quotes=_QUOTES, layouts=(_NAMES, _ARRAY)),))

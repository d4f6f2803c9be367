"""Argument values that a dialect writes as bare text, typed by the tool's schema."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Mapping
from typing import Any

from ratoon.chat.formats.json_text import load
from ratoon.chat.grammar.schema import resolved

_TYPES: dict[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("integer", "number"),
    float: ("number",),
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    type(None): ("null",),
}
_CONSTANTS: dict[str, object] = {"True": True, "False": False, "None": None}
_UNIONS = ("anyOf", "oneOf", "allOf")


def property_schema(schema: Mapping[str, Any] | None, key: str) -> object:
    """The schema of one argument, or None where there is none."""
    whole = resolved(schema or {}, schema or {})
    properties = whole.get("properties")
    if isinstance(properties, dict) and key in properties:
        return resolved(properties[key], schema or {})
    return whole.get("additionalProperties")


def is_text(schema: object) -> bool:
    """Whether only a string fits."""
    return _types(schema) == {"string"}


def typed(text: str, schema: object) -> object:
    """The value that the text stands for; the text itself where nothing else fits."""
    types = _types(schema)
    if types == {"string"}:
        return text
    try:
        value = _CONSTANTS[text.strip()] if text.strip() in _CONSTANTS else load(text)
    except (ValueError, RecursionError):
        value = _python(text)
    if isinstance(value, str):
        return text
    return value if not types or types.intersection(_TYPES[type(value)]) else text


def _python(text: str) -> object:
    """The value of a Python literal in brackets, which some templates show; else the text."""
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        value = literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, list | dict) else text


def _types(schema: object) -> set[str]:
    """Names of the types that fit; empty: not known."""
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return {name for name in named if isinstance(name, str)}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {name for value in values for name in _TYPES.get(type(value), ())}
    branches = [b for key in _UNIONS for b in _branches(schema.get(key))]
    found = [_types(branch) for branch in branches]
    return set().union(*found) if all(found) else set()


def _branches(value: object) -> list[object]:
    return value if isinstance(value, list) else []

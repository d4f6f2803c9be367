"""Calls written as JSON objects with ``name`` and ``arguments`` or ``parameters``."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, NoReturn

from ratoon.chat.formats.call import Call, Tools, Write
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema, to_text

# Inside a JSON string no markup counts.
QUOTES = {'"': '"'}

_ARGUMENTS = ("arguments", "parameters")
_BETWEEN = " \t\r\n,;"
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*(?:,\s*(?:"(?:arguments|parameters)"\s*:\s*(.*))?)?',
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_object(body: str, *, is_cut: bool = False) -> Call | None:
    """The call that one object is."""
    try:
        call = load(body)
    except json.JSONDecodeError as error:
        return _cut(body) if is_cut and is_unfinished(body, error) else None
    except (ValueError, RecursionError):
        return None
    return _checked(call)


def parse_objects(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """Objects one after another, in an array or not."""
    calls: list[Call] = []
    rest = body.lstrip()
    is_array = rest.startswith("[")
    rest = rest.removeprefix("[")
    while rest := rest.lstrip(_BETWEEN):
        if is_array and rest.startswith("]"):
            return calls or None if not rest[1:].strip() else None
        try:
            value, end = first_value(rest)
        except json.JSONDecodeError as error:
            if not (is_cut and is_unfinished(rest, error)):
                return None
            last = _cut(rest)
            return calls + ([last] if last else []) or None
        except (ValueError, RecursionError):
            return None
        call = _checked(value)
        if call is None:
            return None
        calls.append(call)
        rest = rest[end:]
    return None if is_array and not is_cut else calls or None


def parse_declared(body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
    """Objects that no markup tells from data: only declared tools are called."""
    calls = parse_objects(body, tools, is_cut=is_cut)
    return only_declared(calls, tools)


def only_declared(calls: list[Call] | None, tools: Tools) -> list[Call] | None:
    """The calls, unless one of them names no declared tool."""
    is_known = calls is None or not tools or all(call.name in tools for call in calls)
    return calls if is_known else None


def write_object(key: str, *, is_opened: bool = False, tail: str = "") -> Write:
    """Writes an object with ``name`` and ``key``; the name's opening quote may be there already.
    ``tail`` is the grammar of what may follow the arguments."""

    def write(lark: Lark, name: str, schema: Schema) -> str:
        head = to_text(name)[1:] if is_opened else '{"name": ' + to_text(name)
        middle = plain(head + f', "{key}": ')
        return f"{middle} {lark.arguments(schema)} {tail} {plain('}')}"

    return write


def dump(value: object) -> str | None:
    """Canonical JSON text, or None where JSON can't express the value."""
    try:
        return sendable(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None


def load(text: str) -> Any:
    """The JSON value. Control characters in strings are let pass, and a number that is too large
    becomes the largest there is, as JSON can't carry on an infinite one.

    Raises ValueError or RecursionError.
    """
    return _DECODER.decode(text)


def first_value(text: str) -> tuple[object, int]:
    """The JSON value that the text begins with, and where it ends; raises as ``load`` does."""
    return _DECODER.raw_decode(text)


def is_unfinished(body: str, error: json.JSONDecodeError) -> bool:
    """Whether the body is wrong only in that it ends too early."""
    rest = body[error.pos :].strip()
    is_in_string = error.msg.startswith(("Unterminated string", "Invalid \\u"))
    return is_in_string or any(word.startswith(rest) for word in ("true", "false", "null", "-"))


def sendable(text: str) -> str:
    """Without lone surrogates: an escape may write one, UTF-8 can't carry it."""
    return _SURROGATE.sub("\ufffd", text)


def _checked(call: object) -> Call | None:
    if not isinstance(call, dict):
        return None
    name = call.get("name")
    arguments: object = next((call[key] for key in _ARGUMENTS if key in call), {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    text = dump(arguments)
    return None if text is None else Call(sendable(name), text)


def _cut(body: str) -> Call | None:
    head = _HEAD.match(body)
    if head is None:
        return None
    name, arguments = head.groups(default="")
    if arguments and not arguments.startswith("{"):
        return None
    return Call(sendable(json.loads(name, strict=False)), _whole_or_all(arguments))


def _whole_or_all(text: str) -> str:
    """The JSON value that the text begins with, or all of it where that is not complete."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return text[:end]


def finite(text: str) -> float:
    """The nearest number that is not infinite."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=finite)

"""Hermes and Qwen: one JSON object with ``name`` and ``arguments``."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from ratoon.chat.formats.call import Call

START = "<tool_call>"
END = "</tool_call>"

_ARGUMENTS = ("arguments", "parameters")
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)+")\s*(?:,\s*(?:"(?:arguments|parameters)"\s*:\s*(.*))?)?',
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def parse_call(body: str, *, is_cut: bool = False) -> Call | None:
    """The call that the body holds. With ``is_cut`` the reply ended inside it, and a call whose
    name is known comes with what there is of its arguments."""
    try:
        call = json.loads(body, strict=False, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        return _cut(body) if is_cut and _is_unfinished(body, error) else None
    except (ValueError, RecursionError):
        return None
    return _checked(call) if isinstance(call, dict) else None


def _checked(call: dict[str, object]) -> Call | None:
    name = call.get("name")
    arguments = next((call[key] for key in _ARGUMENTS if key in call), {})
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return Call(_sendable(name), _sendable(text))


def _is_unfinished(body: str, error: json.JSONDecodeError) -> bool:
    """Whether the body is wrong only in that it ends too early."""
    rest = body[error.pos :].strip()
    is_in_string = error.msg.startswith(("Unterminated string", "Invalid \\u"))
    return is_in_string or any(word.startswith(rest) for word in ("true", "false", "null", "-"))


def _cut(body: str) -> Call | None:
    head = _HEAD.match(body)
    if head is None:
        return None
    name, arguments = head.groups(default="")
    if arguments and not arguments.startswith("{"):
        return None
    return Call(_sendable(json.loads(name, strict=False)), _first_value(arguments))


def _first_value(text: str) -> str:
    """The JSON value that the text begins with, or all of it where that is not complete."""
    try:
        _, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return text
    return text[:end]


def _sendable(text: str) -> str:
    """Without lone surrogates: an escape may write one, UTF-8 can't carry it."""
    return _SURROGATE.sub("\ufffd", text)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")

"""JSON and text of others, brought into a form that can be sent on."""

from __future__ import annotations

import json
from typing import Any


def dumps(value: object) -> bytes:
    """As JSON; objects that it does not know become their text.

    Raises ValueError for what no JSON text in UTF-8 can hold: NaN and infinities, halves of
    surrogate pairs, what contains itself or is nested too deeply.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str).encode()
    except (RecursionError, TypeError) as error:
        raise ValueError(f"not JSON: {type(error).__name__}") from None


def as_json(value: object) -> Any:
    """The value as JSON holds it. Raises ValueError, as ``dumps`` does."""
    return json.loads(dumps(value))


def loads(text: str | bytes) -> Any:
    """Raises ValueError, also for what Python takes and JSON does not have."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    dumps(value)
    return value


def whole(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, which UTF-8 has no bytes
    for."""
    return text.encode("utf-8", "replace").decode()

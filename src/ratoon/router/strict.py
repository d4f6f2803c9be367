"""JSON and text of others, brought into a form that can be sent on."""

from __future__ import annotations

import json
from typing import Any


def as_json(value: object) -> Any:
    """The value as JSON holds it; objects that JSON does not know become their text.

    Raises ValueError for what no JSON text in UTF-8 can hold: NaN and infinities, halves of
    surrogate pairs, what contains itself or is nested too deeply.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
        return json.loads(text.encode())
    except (RecursionError, TypeError) as error:
        raise ValueError(f"not JSON: {type(error).__name__}") from None


def loads(text: str | bytes) -> Any:
    """Raises ValueError, also for what Python takes and JSON does not have."""
    try:
        return as_json(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def whole(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, which UTF-8 has no bytes
    for."""
    return text.encode("utf-8", "replace").decode()

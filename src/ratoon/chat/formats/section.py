"""Sections of calls, each a head with the name and a JSON object of arguments."""

from __future__ import annotations

import json
import re

from ratoon.chat.formats.call import Call
from ratoon.chat.formats.json_text import dump, first_value, is_unfinished


def parse_section(
    body: str, head: re.Pattern[str], tail: re.Pattern[str], *, is_cut: bool
) -> list[Call] | None:
    """``head`` captures the name and ends in front of the arguments; ``tail`` follows them."""
    calls: list[Call] = []
    at = len(body) - len(body.lstrip())
    while at < len(body):
        found = head.match(body, at)
        if found is None:
            return calls or None if is_cut else None
        name, rest = found[1], body[found.end() :]
        if is_cut and not rest:
            return [*calls, Call(name, "")]
        if not rest.startswith("{"):
            return None
        try:
            arguments, end = first_value(rest)
        except json.JSONDecodeError as error:
            return [*calls, Call(name, rest)] if is_cut and is_unfinished(rest, error) else None
        except (ValueError, RecursionError):
            return None
        text = dump(arguments)
        if text is None:
            return None
        calls.append(Call(name, text))
        closed = tail.match(body, found.end() + end)
        if closed is None:
            return calls if is_cut else None
        at = closed.end()
    return calls or None

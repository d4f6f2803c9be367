"""Turns in the form of the OpenAI Chat Completions API. It needs none of its SDK."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratoon.router.llm import Asked, Call, Called, Results, Turn


def messages_of(turn: Turn, names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """A turn in the API's form. ``names``: what tools are called there."""
    match turn:
        case Asked():
            return [{"role": "user", "content": turn.text}]
        case Called():
            calls = [_call(call, names or {}) for call in turn.calls]
            return [{"role": "assistant", "content": turn.text or None, "tool_calls": calls}]
        case Results():
            return [
                {"role": "tool", "tool_call_id": each.call.id, "content": each.text}
                for each in turn.results
            ]


def _call(call: Call, names: Mapping[str, str]) -> dict[str, Any]:
    arguments = call.text if call.arguments is None else json.dumps(call.arguments)
    function = {"name": names.get(call.name, call.name), "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}

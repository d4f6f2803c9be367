"""Prompts and replies in the form of the Anthropic Messages API. It needs none of its SDK."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratoon.router.catalogue import Tool
from ratoon.router.llm import Asked, Call, Called, Prompt, Reply, Results, Turn
from ratoon.router.strict import whole

THINKING_TOKENS = 1024  # the least there is


def body_of(prompt: Prompt, model: str, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The request that asks a model. ``names``: what tools are called there."""
    names = names or {}
    body: dict[str, Any] = {
        "model": model,
        "messages": [message_of(turn, names) for turn in prompt.turns],
        "max_tokens": prompt.max_tokens,
    }
    if prompt.system:
        body["system"] = prompt.system
    if prompt.tools:
        body["tools"] = [_tool(tool, names) for tool in prompt.tools]
        body["tool_choice"] = _choice(prompt, names)
    if prompt.thinks and prompt.forced is None:  # a forced call leaves no room for reasoning
        body["thinking"] = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
        body["max_tokens"] = prompt.max_tokens + THINKING_TOKENS
    return body


def _tool(tool: Tool, names: Mapping[str, str]) -> dict[str, Any]:
    schema = {"type": "object", **tool.parameters}
    name = names.get(tool.name, tool.name)
    return {"name": name, "description": tool.description, "input_schema": schema}


def _choice(prompt: Prompt, names: Mapping[str, str]) -> dict[str, Any]:
    if prompt.bars_calls:
        return {"type": "none"}
    if prompt.forced is None:
        return {"type": "auto"}
    name = names.get(prompt.forced, prompt.forced)
    return {"type": "tool", "name": name, "disable_parallel_tool_use": True}


def message_of(turn: Turn, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A turn in the API's form. ``names``: what tools are called there."""
    match turn:
        case Asked():
            return {"role": "user", "content": turn.text}
        case Called():
            said: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
            calls = [_call(call, names or {}) for call in turn.calls]
            return {"role": "assistant", "content": said + calls}
        case Results():
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": each.call.id,
                    "content": each.text,
                    "is_error": each.is_error,
                }
                for each in turn.results
            ]
            return {"role": "user", "content": results}


def _call(call: Call, names: Mapping[str, str]) -> dict[str, Any]:
    name = names.get(call.name, call.name)
    return {"type": "tool_use", "id": call.id, "name": name, "input": call.arguments or {}}


def reply_of(message: Mapping[str, Any], names: Mapping[str, str] | None = None) -> Reply:
    """What a message says. ``names``: tools' own, by what they are called there."""
    text, thinking = [], []
    calls = []
    for block in message["content"]:
        if block["type"] == "text":
            text.append(whole(block["text"]))
        elif block["type"] == "thinking":
            thinking.append(whole(block["thinking"]))
        elif block["type"] == "tool_use":
            name = (names or {}).get(block["name"], block["name"])
            calls.append(Call.parse(block["id"], name, json.dumps(block["input"])))
    counts = message.get("usage") or {}
    usage = {name: counts[name] for name in ("input_tokens", "output_tokens") if name in counts}
    return Reply("".join(text), tuple(calls), "\n".join(thinking), message["model"], usage)

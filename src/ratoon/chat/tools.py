"""Tool definitions and calls as a prompt shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ratoon import wire
from ratoon.chat.formats import hermes
from ratoon.errors import InvalidRequest

_CLIENT_TYPES = (None, "custom")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}

_SECTION = """# Tools

These functions can be called. Each line below is the JSON definition of one:
<tools>
{definitions}
</tools>

To call a function, answer with its name and an object of arguments, as one JSON object:
{start}
{{"name": "<name of the function>", "arguments": {{<its arguments>}}}}
{end}
Several calls may follow one another. Their results come back between <tool_response> and \
</tool_response>."""


def offered(tools: Sequence[wire.Tool] | None) -> list[wire.Tool]:
    """The tools that stand in the prompt's head: all but those loaded later.

    Raises InvalidRequest for a tool that only Anthropic's own servers can run.
    """
    for tool in tools or ():
        if tool.input_schema is None and tool.type not in _CLIENT_TYPES:
            raise InvalidRequest(
                f"tools: {tool.name!r} is a server tool ({tool.type}), "
                "which this server does not provide"
            )
    return [tool for tool in tools or () if not tool.defer_loading]


def definition(tool: wire.Tool) -> dict[str, Any]:
    """The canonical function object: equal tools give equal text, however a client wrote them."""
    schema = _NO_PARAMETERS if tool.input_schema is None else tool.input_schema
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": _sorted(schema),
        },
    }


def schemas(tools: Sequence[wire.Tool] | None) -> dict[str, dict[str, Any]]:
    """The arguments' schema of every tool by name, those loaded later included."""
    return {tool.name: tool.input_schema or _NO_PARAMETERS for tool in tools or ()}


def section(definitions: Sequence[dict[str, Any]]) -> str:
    """What a system message says of the tools, for a template that has no place for them."""
    lines = "\n".join(to_json(item) for item in definitions)
    return _SECTION.format(definitions=lines, start=hermes.START, end=hermes.END)


def result_text(result: str) -> str:
    """A call's result in a user's message, for a template that has no place for results."""
    return f"<tool_response>\n{result}\n</tool_response>"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value

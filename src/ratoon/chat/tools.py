"""Tool definitions and calls as a prompt shows them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ratoon import wire
from ratoon.chat.formats import hermes
from ratoon.chat.toolbox import NO_PARAMETERS
from ratoon.errors import InvalidRequest

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

_LOADED = """These functions can be called from here on. Each line is the JSON definition of one:
<tools>
{definitions}
</tools>"""


def check_choice(request: wire.CountTokensRequest) -> None:
    """Raises InvalidRequest where ``tool_choice`` asks for a call that can't be."""
    choice = request.tool_choice
    if choice is None or choice.type not in ("any", "tool"):
        return
    if not request.tools:
        raise InvalidRequest("tool_choice may only be specified while providing tools")
    if choice.type == "tool" and choice.name is None:
        raise InvalidRequest("tool_choice.name: Field required")
    if choice.type == "tool" and all(tool.name != choice.name for tool in request.tools):
        raise InvalidRequest(f"tool_choice.name: Tool '{choice.name}' not found in provided tools")


def definition(tool: wire.Tool) -> dict[str, Any]:
    """The canonical function object: equal tools give equal text, however a client wrote them."""
    schema = NO_PARAMETERS if tool.input_schema is None else tool.input_schema
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": in_order(schema),
        },
    }


def section(definitions: Sequence[dict[str, Any]]) -> str:
    """What a system message says of the tools, for a template that has no place for them."""
    lines = "\n".join(to_json(item) for item in definitions)
    return _SECTION.format(definitions=lines, start=hermes.START, end=hermes.END)


def loaded(definitions: Sequence[dict[str, Any]], names: Sequence[str]) -> str:
    """What is said where tools are loaded: the definitions that were not shown before, and the
    names of the other tools."""
    lines = []
    if definitions:
        shown = "\n".join(to_json(item) for item in definitions)
        lines.append(_LOADED.format(definitions=shown))
    lines += [f"Tool available: {name}" for name in names]
    return "\n".join(lines)


def removed(name: str) -> str:
    return f"Tool no longer available: {name}"


def result_text(result: str) -> str:
    """A call's result in a user's message, for a template that has no place for results."""
    return f"<tool_response>\n{result}\n</tool_response>"


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def in_order(value: Any) -> Any:
    """Equal values with their keys in one order, at every depth."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [in_order(item) for item in value]
    return value

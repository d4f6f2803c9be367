"""A domain's tools as clients send them, checked and brought into one form."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratoon.chat.tools import in_order, to_json
from ratoon.errors import InvalidRequest
from ratoon.router.strict import dumps

MAX_TOOLS = 1000
MAX_TOOL_BYTES = 64 * 1024  # as JSON, with all that the client wrote
MAX_DEPTH = 64

# what OpenAI and Anthropic let a tool be called, and the dots and colons of gateways
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")

_SENDABLE = "JSON without infinities, halves of surrogate pairs or endless nesting"
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. ``source`` is what the client sent, which is what it gets back."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    source: Mapping[str, Any]

    @property
    def line(self) -> str:
        """What the model reads: equal tools give equal text, however a client wrote them."""
        shown = {
            "name": self.name,
            "description": self.description,
            "parameters": in_order(self.parameters),
        }
        return to_json(shown)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Tools in their order, and what the domain's owner says about all of them."""

    tools: tuple[Tool, ...]
    system_prompt: str = ""

    def digest(self) -> str:
        """Equal for catalogues that give equal prompts; order counts. Takes time in proportion to
        them."""
        hasher = hashlib.sha256()
        for part in (self.system_prompt, *(tool.line for tool in self.tools)):
            hasher.update(json.dumps(part).encode())
        return hasher.hexdigest()

    def tool(self, name: str) -> Tool:
        """The tool of that name, which there is."""
        return next(tool for tool in self.tools if tool.name == name)

    def with_tools(self, more: Sequence[Tool]) -> Catalogue:
        """The same with tools at its end. Raises InvalidRequest for names that are taken."""
        return Catalogue(_unique((*self.tools, *more)), self.system_prompt)


def check_id(value: str, what: str = "domain_id") -> str:
    """An id that may stand in a path. Raises InvalidRequest."""
    if not _ID.fullmatch(value) or set(value) == {"."}:
        raise InvalidRequest(
            f"{what}: must be 1 to 128 letters, digits, dots, dashes or underscores"
        )
    return value


def parse_tools(value: object) -> tuple[Tool, ...]:
    """Tools in OpenAI's or Anthropic's form, one by one. Raises InvalidRequest, which names the
    place."""
    if not isinstance(value, list) or not value:
        raise InvalidRequest("tools: Input should be a list of at least one tool")
    if len(value) > MAX_TOOLS:
        raise InvalidRequest(f"tools: at most {MAX_TOOLS} tools are supported")
    return _unique(tuple(_tool(item, f"tools.{n}") for n, item in enumerate(value)))


def _tool(item: object, where: str) -> Tool:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: Input should be an object")
    _check_size(item, where)
    if "function" in item or item.get("type") == "function":
        is_inner = "function" in item  # OpenAI's Responses API has the same fields without it
        body, path = (item["function"], f"{where}.function") if is_inner else (item, where)
        key = "parameters"
    else:
        body, path = item, where
        key = "parameters" if item.get("input_schema") is None else "input_schema"
    if not isinstance(body, dict):
        raise InvalidRequest(f"{path}: Input should be an object")
    name = _name(body.get("name"), f"{path}.name")
    description = body.get("description") or ""
    if not isinstance(description, str):
        raise InvalidRequest(f"{path}.description: Input should be a string")
    parameters = _NO_PARAMETERS if body.get(key) is None else body[key]
    _check_schema(parameters, f"{path}.{key}")
    return Tool(name, description, parameters, item)


def _name(value: object, where: str) -> str:
    if value is None:
        raise InvalidRequest(f"{where}: Field required")
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"{where}: must be 1 to 128 letters, digits, underscores, dots, colons or dashes"
        )
    return value


def _check_size(item: object, where: str) -> None:
    """All of it counts, as all of it is kept and given back."""
    try:
        n_bytes = len(dumps(item))
    except ValueError:
        raise InvalidRequest(f"{where}: Input should be {_SENDABLE}") from None
    if n_bytes > MAX_TOOL_BYTES:
        raise InvalidRequest(f"{where}: larger than {MAX_TOOL_BYTES} bytes")


def _check_schema(schema: object, where: str) -> None:
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{where}: Input should be an object")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"{where}.type: Input should be 'object'")
    if not isinstance(schema.get("properties", {}), dict):
        raise InvalidRequest(f"{where}.properties: Input should be an object")
    if _depth(schema) > MAX_DEPTH:
        raise InvalidRequest(f"{where}: nested deeper than {MAX_DEPTH} levels")


def _unique(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise InvalidRequest(f"tools: Tool names must be unique: '{tool.name}'")
        seen.add(tool.name)
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools: at most {MAX_TOOLS} tools are supported")
    return tools


def _depth(value: object) -> int:
    """How many containers lie in one another; without recursion, as it may be any number."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [
            inner for item in level for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return depth

"""Tool schemas in the shapes that coding agents and their servers send."""

from __future__ import annotations

import json
from typing import Any

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _tool(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """As schema libraries of agents write one."""
    schema: dict[str, Any] = {"$schema": DRAFT, "type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return {**schema, "additionalProperties": False, **more}


AGENT_TOOLS: dict[str, dict[str, Any]] = {
    "run": _tool(
        {
            "command": {"type": "string", "description": "What to run"},
            "timeout": {"type": "number", "description": 'At most "600000"'},
            "in_background": {"type": "boolean", "default": False},
        },
        "command",
    ),
    "edit_file": _tool(
        {
            "file_path": {"type": "string"},
            "old": {"type": "string"},
            "new": {"type": "string"},
            "every": {"type": "boolean", "default": False},
        },
        "file_path",
        "old",
        "new",
    ),
    "find": _tool(
        {
            "pattern": {"type": "string"},
            "-i": {"type": "boolean"},
            "-A": {"type": "integer", "minimum": 0},
            "mode": {"type": "string", "enum": ["content", "files", "count"]},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        },
        "pattern",
    ),
    "report": _tool(
        {
            "findings": {
                "type": "array",
                "maxItems": 3,
                "items": _tool(
                    {
                        "file": {"type": "string", "maxLength": 40},
                        "line": {"type": "integer"},
                        "level": {"enum": ["high", "low", None]},
                    },
                    "file",
                ),
            },
        },
        "findings",
    ),
    "resume": _tool(
        {"run_id": {"type": "string", "pattern": "^wf_[a-z0-9-]{6,}$"}, "args": {}}, "run_id"
    ),
    "list_agents": _tool({"query": {"type": "string", "minLength": 1, "maxLength": 16}}),
    "nothing": {"type": "object", "properties": {}},
}

SERVER_TOOLS: dict[str, dict[str, Any]] = {
    "create-issue": {
        "type": "object",
        "properties": {
            "title": {"type": "string", "title": "Title"},
            "labels": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "priority": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "estimate": {"type": ["number", "string"]},
            "assignee": {"$ref": "#/$defs/Person"},
        },
        "required": ["title", "assignee"],
        "$defs": {
            "Person": {
                "type": "object",
                "properties": {
                    "name": {"$ref": "#/$defs/Name"},
                    "reports": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
                },
                "required": ["name"],
            },
            "Name": {"type": "string", "minLength": 1},
        },
    },
    "set.owner": {
        "type": "object",
        "properties": {"owner": {"$ref": "#/definitions/Name"}, "kind": {"const": "user"}},
        "required": ["owner", "kind"],
        "definitions": {"Name": {"type": "string"}},
    },
    "query_db": {
        "type": "object",
        "properties": {
            "filter": {
                "anyOf": [
                    {"type": "string", "enum": ["all", "none"]},
                    {"type": "object", "properties": {"id": {"type": "integer"}}},
                    {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
                ]
            },
            "limit": {"type": ["integer", "string"]},
            "when": {"type": "string", "format": "date-time"},
        },
    },
    "choose": {
        "anyOf": [
            {"properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
        ]
    },
    "annotate": {
        "type": "object",
        "properties": {"env": {"type": "object", "additionalProperties": {"type": "string"}}},
        "required": ["env"],
    },
}


def _chain(length: int, **link: Any) -> dict[str, Any]:
    """Definitions of which each leads to the next; ``link`` is a schema around ``NEXT``."""
    text = json.dumps(link)
    links = {f"d{n}": json.loads(text.replace("NEXT", f"#/$defs/d{n + 1}")) for n in range(length)}
    first = _tool({"a": {"$ref": "#/$defs/d0"}}, "a")
    return {**first, "$defs": {**links, f"d{length}": {"type": "integer"}}}


_NEXT = {"$ref": "NEXT"}

# What no grammar can keep, or not all of it; each is an object by its own word.
ODD_SCHEMAS: dict[str, dict[str, Any]] = {
    "look_ahead": _tool({"a": {"type": "string", "pattern": "^(?=x).*$"}}, "a"),
    "odd_format": _tool({"a": {"type": "string", "format": "no-such"}}, "a"),
    "negated": _tool({"a": {"not": {"type": "string"}}}, "a"),
    "remote": _tool({"a": {"$ref": "https://example.org/schema"}}, "a"),
    "unique": _tool({"a": {"type": "array", "uniqueItems": True}}, "a"),
    "conditional": {"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "odd_type": _tool({"a": {"type": "any"}}, "a"),
    "no_properties": {"type": "object", "properties": None},
    "impossible": _tool({"a": {"type": "string", "minLength": 5, "maxLength": 2}}, "a"),
    "listed": {"type": "object", "required": "a"},
    "endless": _tool({"a": {"$ref": "#"}}, "a"),
    "itself": {**_tool({"a": {"$ref": "#/$defs/b"}}, "a"), "$defs": {"b": {"$ref": "#/$defs/b"}}},
    "only_itself": _tool({"a": {"type": "array", "minItems": 1, "items": {"$ref": "#"}}}, "a"),
    "linked": _chain(3000, **_NEXT),
    "deep": _chain(1000, type="object", properties={"a": _NEXT}, required=["a"]),
    "rather_deep": _chain(250, type="object", properties={"a": _NEXT}, required=["a"]),
    "branching": _chain(30, anyOf=[_NEXT, _NEXT]),
}

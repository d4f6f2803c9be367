"""Typed tools: the client or this server knows what they do, so a request only names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ratoon import wire
from ratoon.errors import InvalidRequest

Search = Literal["bm25", "regex"]

MAX_PATTERN = 200  # characters of a regular expression

_TEXT = {"type": "string"}


def complete(tool: wire.Tool, place: str) -> wire.Tool:
    """The tool with its description and schema; a search tool always stands in the head.

    ``place`` names it in the request. Raises InvalidRequest for a server tool of others.
    """
    if tool.input_schema is not None or tool.type in (None, "custom"):
        return tool
    family = next((name for name in _FAMILIES if (tool.type or "").startswith(name)), None)
    if family is None:
        raise InvalidRequest(
            f"{place}: tools of type {tool.type!r} are not provided by this server"
        )
    description, schema = _FAMILIES[family]
    update: dict[str, Any] = {"description": description, "input_schema": schema}
    if search_kind(tool):
        update["defer_loading"] = False
    return tool.model_copy(update=update)


def search_kind(tool: wire.Tool) -> Search | None:
    """How this server searches when the tool is called; None: it is not a search tool."""
    if tool.input_schema is not None:
        return None
    return next((kind for name, kind in _SEARCHES if (tool.type or "").startswith(name)), None)


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required)}


def _file_schema(commands: list[str], **more: Any) -> dict[str, Any]:
    properties = {
        "command": {"type": "string", "enum": commands},
        "path": {"type": "string", "description": "The file or directory."},
        "file_text": {"type": "string", "description": "For create: the whole file."},
        "old_str": {"type": "string", "description": "For str_replace: unique text of the file."},
        "new_str": {"type": "string", "description": "For str_replace: what takes its place."},
        "insert_line": {"type": "integer", "description": "For insert: after which line; 0: top."},
        "insert_text": {"type": "string", "description": "For insert: the new lines."},
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "For view: first and last line; -1: the end.",
        },
    }
    return _object({**properties, **more}, "command")


_FILE_COMMANDS = ["view", "create", "str_replace", "insert"]

_EDITOR = (
    "Views, creates and edits text files. One command a call.",
    _file_schema(_FILE_COMMANDS),
)
_OLD_EDITOR = (
    "Views, creates and edits text files, and undoes the last edit. One command a call.",
    _object(
        {
            **_file_schema([*_FILE_COMMANDS, "undo_edit"])["properties"],
            "new_str": {"type": "string", "description": "For str_replace and insert: the text."},
        },
        "command",
        "path",
    ),
)
_BASH = (
    "Runs commands in a bash session that keeps its state between calls.",
    _object(
        {
            "command": {"type": "string", "description": "The command; not needed to restart."},
            "restart": {"type": "boolean", "description": "True starts a new session."},
        }
    ),
)
_MEMORY = (
    "Keeps notes in files under /memories that outlive this conversation. Look there first.",
    _file_schema(
        [*_FILE_COMMANDS, "delete", "rename"],
        old_path={"type": "string", "description": "For rename: the present path."},
        new_path={"type": "string", "description": "For rename: the new path."},
    ),
)
_BM25 = (
    "Finds tools that can't be called yet by what they do. Those found can be called afterwards.",
    _object({"query": {**_TEXT, "description": "What it should do, in a few words."}}, "query"),
)
_REGEX = (
    "Finds tools that can't be called yet: those whose name, description or arguments match a "
    "regular expression. Those found can be called afterwards.",
    _object(
        {
            "pattern": {
                **_TEXT,
                "description": f"A regular expression of at most {MAX_PATTERN} characters, "
                "without look-around; (?i) ignores case.",
            }
        },
        "pattern",
    ),
)

# Beginning of a type → description and schema of its arguments.
_FAMILIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bash_20": _BASH,
    "text_editor_20241022": _OLD_EDITOR,
    "text_editor_20250124": _OLD_EDITOR,
    "text_editor_20": _EDITOR,
    "memory_20": _MEMORY,
    "tool_search_tool_bm25": _BM25,
    "tool_search_tool_regex": _REGEX,
}
_SEARCHES: tuple[tuple[str, Search], ...] = (
    ("tool_search_tool_bm25", "bm25"),
    ("tool_search_tool_regex", "regex"),
)

"""Blocks of other kinds as the text that stands for them. Pure; nothing here is guarded yet."""

from __future__ import annotations

import json
from typing import Any

from ratoon import wire

_SEPARATOR = "\n\n"
# What only the server that wrote it can read, or that is no prompt text.
_OPAQUE = ("encrypted_", "cache_control", "citations", "signature")


def document_text(block: wire.DocumentBlock) -> str:
    """Its title, what is said about it, and its text; a note where it is none."""
    match block.source:
        case wire.TextSource(data=data):
            text = data
        case wire.ContentSource(content=str(content)):
            text = content
        case wire.ContentSource(content=list(parts)):
            texts = [part.text for part in parts if isinstance(part, wire.TextBlock)]
            text = _SEPARATOR.join(texts)
        case _:
            text = "[A document, which this model can't read.]"
    return _SEPARATOR.join(filter(None, (block.title, block.context, text)))


def search_result_text(block: wire.SearchResultBlock) -> str:
    """Its title and source, then its text."""
    texts = [part.text for part in block.content]
    return _SEPARATOR.join(filter(None, (f"{block.title}\n{block.source}", *texts)))


def foreign_text(content: Any) -> str:
    """The answer of a tool that another server ran: its text, else its readable parts as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(_is_text(part) for part in content):
        return _SEPARATOR.join(part["text"] for part in content)
    return json.dumps(readable(content), ensure_ascii=False)


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )


def readable(value: Any) -> Any:
    """A JSON value without what is no prompt text."""
    if isinstance(value, list):
        return [readable(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {key: readable(item) for key, item in value.items() if not key.startswith(_OPAQUE)}
    if kept.get("type") == "base64":
        kept.pop("data", None)
    return kept

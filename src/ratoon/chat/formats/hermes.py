"""Hermes and Qwen: one JSON object with ``name`` and ``arguments``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_all_objects, read_object, write_object

START = "<tool_call>"
END = "</tool_call>"

LAYOUT = Layout(write_object("arguments"), before="\n", after="\n", again="\n")
ARRAY = Layout(write_object("arguments"), before="[", between=", ", after="]")


def show(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """One call after another, each in its own tags."""
    return "\n".join(f"{START}\n{_object(*call)}\n{END}" for call in calls)


def show_array(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """All calls as one JSON array."""
    return f"[{', '.join(_object(*call) for call in calls)}]"


def _object(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


DIALECT = Dialect(
    "hermes",
    (
        Form(START, read_object, END, layouts=(LAYOUT,)),
        # Apriel and MiniMax M1; Nemotron Nano.
        Form("<tool_calls>", read_all_objects, "</tool_calls>", layouts=(ARRAY,)),
        Form("<TOOLCALL>", read_all_objects, "</TOOLCALL>", layouts=(ARRAY,)),
    ),
    show=show,
)

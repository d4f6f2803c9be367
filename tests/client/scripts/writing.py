"""How the model writes: plain text, and calls as a JSON object between tags."""

from __future__ import annotations

import json

WORK = "$WORK"  # stands for the folder the client works in
CLOSING = "That is all."
# of a conversation that is compacted; it goes on with another script
SUMMARY = (
    "<analysis>\nNumbers.\n</analysis>\n<summary>\n[[S:grown]] Numbers were counted.\n</summary>"
)


def call(tool: str, **arguments: object) -> str:
    """A call in the order given here, which need not be the schema's."""
    return raw_call(tool, json.dumps(arguments))


def raw_call(tool: str, arguments: str) -> str:
    """A call whose arguments are written in a form that ``json.dumps`` does not choose."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {arguments}}}\n</tool_call>'


def reply(*parts: str) -> str:
    """One turn: texts and calls below each other."""
    return "\n".join(parts)

"""The tools of one conversation, as it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratoon import wire
from ratoon.chat.typed import complete
from ratoon.errors import ToolReferenceUnresolved

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


class Toolbox:
    """Which tools are known, which have been shown to the model, and which it may call now.

    ``head``: those that the prompt begins with. The others are loaded where a reference to them
    stands, so that the head never changes.
    """

    def __init__(self, tools: Sequence[wire.Tool] | None) -> None:
        whole = [complete(tool, f"tools.{i}") for i, tool in enumerate(tools or ())]
        self.head = [tool for tool in whole if not tool.defer_loading]
        self._known = {tool.name: tool for tool in whole}
        self._shown = {tool.name for tool in self.head}
        self._removed: set[str] = set()
        self._callable = {tool.name: tool for tool in self.head}

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """The arguments' schema of every tool that may be called now, by name."""
        return _schemas(self._callable)

    @property
    def known_schemas(self) -> dict[str, dict[str, Any]]:
        """The same of every tool that has been defined."""
        return _schemas(self._known)

    @property
    def searchable(self) -> tuple[wire.Tool, ...]:
        """The tools that a search may find: those left out of the head, and not removed."""
        known = self._known.values()
        return tuple(t for t in known if t.defer_loading and t.name not in self._removed)

    def load(self, name: str) -> wire.Tool | None:
        """The tool may be called from here on; it is returned if it has to be shown first."""
        tool = self._known.get(name)
        if tool is None:
            raise ToolReferenceUnresolved(name)
        self._callable[name] = tool
        self._removed.discard(name)
        if name in self._shown:
            return None
        self._shown.add(name)
        return tool

    def define(self, tool: wire.Tool) -> wire.Tool | None:
        """Load a tool that is defined here; one of the same name gives way to it."""
        whole = complete(tool, "tool_addition")
        if self._known.get(tool.name) != whole:
            self._known[tool.name] = whole
            self._shown.discard(tool.name)
        return self.load(tool.name)

    def remove(self, name: str) -> None:
        """The tool may not be called from here on."""
        if name not in self._known:
            raise ToolReferenceUnresolved(name)
        self._callable.pop(name, None)
        self._removed.add(name)


def _schemas(tools: Mapping[str, wire.Tool]) -> dict[str, dict[str, Any]]:
    return {name: tool.input_schema or NO_PARAMETERS for name, tool in tools.items()}

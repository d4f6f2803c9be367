"""What the pipeline may ask of a language model, whoever runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ratoon.router.catalogue import Tool
from ratoon.router.strict import loads, whole


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. ``arguments`` is None where they are no JSON object; ``text`` is what came."""

    id: str
    name: str
    arguments: dict[str, Any] | None
    text: str

    @classmethod
    def parse(cls, call_id: str, name: str, text: str) -> Call:
        """From arguments as JSON text; no text means no arguments."""
        try:
            value = loads(text or "{}")
        except ValueError:
            value = None
        return cls(call_id, whole(name), value if isinstance(value, dict) else None, whole(text))


@dataclass(frozen=True, slots=True)
class Asked:
    """The user's turn."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """The model's turn: what it said and the calls it made."""

    text: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one call."""

    call: Call
    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Results:
    """The results of all calls of the turn before."""

    results: tuple[Result, ...]


Turn = Asked | Called | Results


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question to a model. ``forced``: the tool that must be called, once, if any must.
    ``bars_calls``: tools are shown, as turns speak of them, and none may be called."""

    turns: Sequence[Turn]
    system: str = ""
    tools: Sequence[Tool] = ()
    forced: str | None = None
    bars_calls: bool = False
    max_tokens: int = 1024
    temperature: float | None = None
    thinks: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said. ``thinking`` is its reasoning, where there is any to show."""

    text: str
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    model: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)


class Llm(Protocol):
    """A model behind some API."""

    async def reply(self, prompt: Prompt) -> Reply:
        """Raises UpstreamError."""
        ...

    async def close(self) -> None: ...

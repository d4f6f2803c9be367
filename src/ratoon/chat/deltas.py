"""What a reply is made of, piece by piece."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolInput:
    partial_json: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    pass


Delta = TextDelta | ThinkingDelta | ToolStart | ToolInput | ToolEnd

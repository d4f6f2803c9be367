"""A parsed tool call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """``arguments`` is the JSON text of an object; of its beginning, in a call that was cut off."""

    name: str
    arguments: str

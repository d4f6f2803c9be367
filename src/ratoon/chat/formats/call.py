"""What a dialect of tool calls is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

# Name → JSON schema of the arguments, for each declared tool; empty where none are known.
Tools = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """``arguments`` is the JSON text of an object; of its beginning, in a call that was cut off."""

    name: str
    arguments: str


class Parse(Protocol):
    """Reads the body of a form."""

    def __call__(self, body: str, tools: Tools, *, is_cut: bool = False) -> list[Call] | None:
        """The calls it holds, or None where it is no call. With ``is_cut`` the reply ended
        inside it, and the last call comes with what there is of its arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write calls: a start, a body and an end.

    ``end``         the text behind the body; empty: the body ends when its brackets are closed
    ``lead``        the part of the start that belongs to the body
    ``quotes``      opening → closing text of the places where no end and no bracket counts
    ``is_opening``  it counts only in front of all text
    """

    start: str
    parse: Parse
    end: str = ""
    lead: str = ""
    quotes: Mapping[str, str] = field(default_factory=dict)
    is_opening: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of models writes calls. No start may be the beginning of another one."""

    name: str
    forms: tuple[Form, ...]

    def also(self, other: Dialect) -> Dialect:
        """This dialect that understands the other's forms too; where starts clash, the other's."""
        starts = {form.start for form in other.forms}
        own = tuple(form for form in self.forms if form.start not in starts)
        return Dialect(self.name, own + other.forms)

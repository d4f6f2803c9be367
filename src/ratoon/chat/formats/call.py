"""What a dialect of tool calls is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ratoon.chat.grammar.lark import Lark

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


class Write(Protocol):
    """Writes the grammar of one call."""

    def __call__(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str: ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model lays out the calls of a form, for the grammar that guides it: ``before``, calls
    with ``between`` in between, ``after``, and ``again`` in front of a further start.

    ``between``  None: a body holds one call
    ``again``    None: no further body follows
    ``names``    the tool names that can be read back; None: all
    ``marks``    texts in a call that are tokens in some vocabularies
    ``waits``    what starts like a call may be data as long as ``before`` has not come
    """

    call: Write
    before: str = ""
    between: str | None = None
    after: str = ""
    again: str | None = None
    names: re.Pattern[str] | None = None
    marks: tuple[str, ...] = ()
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write calls: a start, a body and an end.

    ``end``         the text behind the body; empty: the body ends when its brackets are closed
    ``lead``        the part of the start that belongs to the body
    ``quotes``      opening → closing text of the places where no end and no bracket counts
    ``is_opening``  it counts only in front of all text
    ``layouts``     how models write it; none: no markup tells it from data, so it is never guided
    """

    start: str
    parse: Parse
    end: str = ""
    lead: str = ""
    quotes: Mapping[str, str] = field(default_factory=dict)
    is_opening: bool = False
    layouts: tuple[Layout, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of models writes calls. No start may be the beginning of another one. The first
    form is the one that its models are taught."""

    name: str
    forms: tuple[Form, ...]

    def also(self, other: Dialect) -> Dialect:
        """This dialect for a model that is taught the other's forms; both are understood, and
        where starts clash, it is the other's."""
        starts = {form.start for form in other.forms}
        own = tuple(form for form in self.forms if form.start not in starts)
        return Dialect(self.name, other.forms + own)

    def taught(self, template_source: str) -> Dialect:
        """The forms that the chat template shows come first."""
        forms = sorted(self.forms, key=lambda form: form.start not in template_source)
        return Dialect(self.name, tuple(forms))

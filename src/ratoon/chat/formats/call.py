"""What a dialect of tool calls is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.sink import Tools as Tools
from ratoon.chat.formats.source import Reading, Source


class Read(Protocol):
    """Reads what follows the start of a form."""

    def __call__(self, source: Source, sink: Sink) -> Reading:
        """Puts the calls into the sink as they come. Raises Broken where the text is no call."""
        ...


Write = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write calls: a start, a body and an end.

    ``end``         the text behind the body; empty: what is read tells where the body ends
    ``is_opening``  it counts only in front of all text
    """

    start: str
    read: Read
    end: str = ""
    is_opening: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of models writes calls. No start may be the beginning of another one.

    ``is_frame``  the forms hold text and reasoning too, so that they count in every reply
    ``write``     calls as the model writes them, for a template that shows no calls
    ``call_id``   the form of a call's id, of its ``name`` and its number ``n`` in the
                  conversation; by default nine alphanumeric characters, as some templates want
    """

    name: str
    forms: tuple[Form, ...]
    is_frame: bool = False
    write: Write | None = None
    call_id: str = "call{n:05d}"

    def also(self, other: Dialect) -> Dialect:
        """This dialect that writes as the other one and understands it too; where starts clash,
        the other's form counts."""
        starts = {form.start for form in other.forms}
        own = tuple(form for form in self.forms if form.start not in starts)
        return replace(self, forms=own + other.forms, write=other.write)

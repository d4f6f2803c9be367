"""What a dialect of tool calls is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.sink import Tools as Tools
from ratoon.chat.formats.source import Reading, Source


class Read(Protocol):
    """Reads what follows the start of a form."""

    def __call__(self, source: Source, sink: Sink) -> Reading:
        """Puts the calls into the sink as they come. Raises Broken where the text is no call."""
        ...


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
    """

    name: str
    forms: tuple[Form, ...]
    is_frame: bool = False

    def also(self, other: Dialect) -> Dialect:
        """This dialect that understands the other's forms too; where starts clash, the other's."""
        starts = {form.start for form in other.forms}
        own = tuple(form for form in self.forms if form.start not in starts)
        return Dialect(self.name, own + other.forms, self.is_frame)

"""What a dialect of tool calls is made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.sink import Tools as Tools
from ratoon.chat.formats.source import Reading, Source
from ratoon.chat.grammar.lark import Lark
from ratoon.chat.grammar.schema import to_text


class Read(Protocol):
    """Reads what follows the start of a form."""

    def __call__(self, source: Source, sink: Sink) -> Reading:
        """Puts the calls into the sink as they come. Raises Broken where the text is no call."""
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
    ``waits``    what starts like a call may be data as long as ``before`` has not come, nor,
                 where the layout ``is_guess``, a tool's name in JSON behind it
    """

    call: Write
    before: str = ""
    between: str | None = None
    after: str = ""
    again: str | None = None
    names: re.Pattern[str] | None = None
    marks: tuple[str, ...] = ()
    waits: bool = False
    is_guess: bool = False

    def signals(self, tools: Tools) -> list[str]:
        """What is waited for; nothing where the start of the form tells enough."""
        if not self.is_guess:
            return [self.before] if self.waits else []
        return [self.before + to_text(name)[1:] for name in tools]


# Calls, each a name and its arguments, as a model writes them.
Show = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], str]


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write calls: a start, a body and an end.

    ``end``         the text behind the body; empty: what is read tells where the body ends
    ``lead``        the part of the start that belongs to a JSON body
    ``is_opening``  it counts only in front of all text
    ``holds_text``  it may hold text or reasoning, and the rest of the reply is in forms too
    ``layouts``     how models write it; none: it is never a call
    """

    start: str
    read: Read
    end: str = ""
    lead: str = ""
    is_opening: bool = False
    holds_text: bool = False
    layouts: tuple[Layout, ...] = ()

    @property
    def holds_data(self) -> bool:
        """Whether it may be the JSON of some data, in which nothing is a call."""
        return not self.holds_text and any(layout.waits for layout in self.layouts)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a family of models writes calls. No start may be the beginning of another one. The first
    form is the one that its models are taught.

    ``thought``  the grammar of reasoning in forms that a bound reply may begin with
    ``answer``   what stands in front of a bound reply's text
    ``show``     calls as the model writes them, for a template that shows no calls
    ``call_id``  the form of a call's id, of its ``name`` and its number ``n`` in the
                 conversation; by default nine alphanumeric characters, as some templates want
    """

    name: str
    forms: tuple[Form, ...]
    thought: Callable[[Lark], str] | None = None
    answer: str = ""
    show: Show | None = None
    call_id: str = "call{n:05d}"

    @property
    def is_frame(self) -> bool:
        """Whether the forms count in every reply, with tools or without."""
        return any(form.holds_text for form in self.forms)

    def also(self, other: Dialect) -> Dialect:
        """This dialect for a model that is taught the other's forms; both are understood, and
        where starts clash, it is the other's."""
        starts = {form.start for form in other.forms}
        own = tuple(form for form in self.forms if form.start not in starts)
        return replace(self, forms=other.forms + own, show=other.show)

    def taught(self, template_source: str) -> Dialect:
        """The forms that the chat template shows come first."""
        forms = sorted(self.forms, key=lambda form: form.start not in template_source)
        return replace(self, forms=tuple(forms))

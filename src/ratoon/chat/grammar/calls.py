"""What calls a reply may hold, as sources."""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.chat.formats.call import Dialect, Form, Layout, Tools
from ratoon.chat.grammar.lark import Lark, one_of

_GAP = "/\\n{1,2}/"


def marks(dialect: Dialect) -> set[str]:
    """Every text that is a token of its own where the vocabulary has one."""
    found = {form.start.removesuffix(form.lead) for form in dialect.forms}
    found.update(form.end for form in dialect.forms)
    for form in dialect.forms:
        found.update(text for layout in form.layouts for text in layout.marks)
    return {text for text in found if any(map(str.isalpha, text))}


@dataclass(frozen=True, slots=True)
class Calls:
    """Writes the calls of ``tools``; where ``is_single``, a reply has one at most."""

    lark: Lark
    tools: Tools
    is_single: bool

    def behind_start(self, form: Form) -> str | None:
        """One body of a form whose start is there already. None where no tool can be called in
        this form."""
        bodies = [self._body(form, layout) for layout in form.layouts]
        found = [body for body in bodies if body is not None]
        return one_of(found) if found else None

    def whole(self, form: Form) -> str | None:
        """One or more bodies with their starts."""
        found = [text for layout in form.layouts if (text := self._whole(form, layout))]
        return one_of(found) if found else None

    def _whole(self, form: Form, layout: Layout) -> str | None:
        body = self._body(form, layout)
        if body is None:
            return None
        one = self.lark.rule(f"{self.lark.text(form.start)} {body}")
        if self.is_single or layout.again is None:
            return one
        return f"{one} ({self.lark.text(layout.again)} {one})*"

    def _body(self, form: Form, layout: Layout) -> str | None:
        lark = self.lark
        calls = []
        for name, schema in self.tools.items():
            if _can_write(layout, name):
                lark.subject = name
                calls.append(layout.call(lark, name, schema))
        if not calls:
            return None
        call = lark.rule(" | ".join(calls))
        more = ""
        if layout.between is not None and not self.is_single:
            more = f"({lark.text(layout.between)} {call})*"
        before, after = lark.text(layout.before), lark.text(layout.after)
        return f"{before} {call} {more} {after} {lark.text(form.end)}"


def speakable(dialect: Dialect, tools: Tools) -> Tools:
    """The tools whose names can be written in some form."""
    layouts = [layout for form in dialect.forms for layout in form.layouts]
    return {
        name: schema
        for name, schema in tools.items()
        if any(_can_write(layout, name) for layout in layouts)
    }


def behind_reasoning(reply: str) -> str:
    """The grammar of a reply, and of the blank line that models put in front of it."""
    return f"({_GAP})? ({reply})"


def _can_write(layout: Layout, name: str) -> bool:
    names = layout.names
    return names is None or (name == name.strip() and names.fullmatch(name) is not None)

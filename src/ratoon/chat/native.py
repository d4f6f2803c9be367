"""Whether a model's own way of calling tools can be used."""

from __future__ import annotations

import json

from ratoon.chat.calls import CallSplitter
from ratoon.chat.deltas import ToolInput, ToolStart
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect
from ratoon.chat.formats.table import detect
from ratoon.chat.template import PROBE_ARGUMENTS, PROBE_NAME, ChatTemplate


def settle(template: ChatTemplate, dialect: Dialect | None) -> tuple[ChatTemplate, Dialect]:
    """The template and the dialect in which calls are shown and read.

    Without a ``dialect`` the template tells it. A template that shows calls in a form which the
    dialect does not read is used without its tools: the prompt teaches Hermes in its place, as it
    does where a template has no place for tools.
    """
    dialect = dialect or detect(template.source)
    if template.renders_tool_calls and not _reads(dialect, template.shown_call):
        template = template.without_tools()
    if not template.takes_tools or (not template.renders_tool_calls and dialect.show is None):
        return template, dialect.also(hermes.DIALECT)
    return template, dialect.taught(template.source)


def _reads(dialect: Dialect, reply: str) -> bool:
    """Whether the dialect finds the one call that the template was asked to show."""
    splitter = CallSplitter(str, dialect, {})
    deltas = splitter.feed(reply) + splitter.finish()
    names = [delta.name for delta in deltas if isinstance(delta, ToolStart)]
    text = "".join(delta.partial_json for delta in deltas if isinstance(delta, ToolInput))
    try:
        return names == [PROBE_NAME] and json.loads(text) == PROBE_ARGUMENTS
    except ValueError:
        return False

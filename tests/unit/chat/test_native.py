"""Conversations with tools through templates of every family's shape, read back as replies."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from ratoon.bench.suite import TOOL_TEMPLATE
from ratoon.chat.formats.table import DIALECTS, detect
from ratoon.chat.native import settle
from ratoon.chat.normalise import Rules
from ratoon.chat.parser import ReplyParser, TextDelta, ThinkingDelta, ToolInput, ToolStart
from ratoon.chat.render import Prompt, Renderer
from ratoon.chat.template import ChatTemplate
from tests.unit.chat.fakes import ByteVocab, joined, request, shown, text, tool_result, tool_use

TEMPLATES = {
    file.stem: file.read_text(encoding="utf-8")
    for file in [TOOL_TEMPLATE, *(Path(__file__).parents[2] / "templates").glob("*.jinja")]
}
TOOLS = [
    {
        "name": "read",
        "description": "Reads a file",
        "input_schema": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "limit": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
    },
    {"name": "stop", "input_schema": {"type": "object", "properties": {}}},
]
PATH = 'a "b" \\d é\n<x> {'
READ = {"path": PATH, "limit": 5, "tags": ["x", "y z"]}

each_template = pytest.mark.parametrize("name", TEMPLATES)


def prompt(name: str, *messages: tuple[str, Any]) -> Prompt:
    template = ChatTemplate(TEMPLATES[name], "<s>", "</s>")
    renderer = Renderer(template, ByteVocab(), Rules())
    return renderer.render(request(*messages, tools=TOOLS, system="Be brief."))


def read_back(name: str, *blocks: dict[str, Any]) -> tuple[str, list[tuple[str, Any]]]:
    """The text and the calls of an assistant's turn, read from its place in a longer prompt."""
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [tool_result(id, f"result of {id}") for id in ids]
    opening = prompt(name, ("user", "Begin."))
    whole = prompt(name, ("user", "Begin."), ("assistant", list(blocks)), ("user", results))
    header, history = shown(opening), shown(whole)
    assert history.startswith(header)
    said, calls = "", list[tuple[str, Any]]()
    # Where a message holds one call, several follow one another, each behind its header.
    for reply in history[len(header) :].split(header.rpartition("Begin.")[2])[: len(ids) + 1]:
        number = count(1)
        parser = ReplyParser((), True, lambda: f"t{next(number)}", whole.dialect, whole.schemas)  # noqa: B023
        for delta in joined(parser.feed(reply.encode()) + parser.finish()):
            match delta:
                case TextDelta(part) | ThinkingDelta(part):
                    said += part
                case ToolStart(_, called):
                    calls.append((called, ""))
                case ToolInput(part):
                    calls[-1] = (calls[-1][0], json.loads(part))
    return said, calls


@each_template
def test_the_template_tells_its_dialect(name: str) -> None:
    assert detect(TEMPLATES[name]).name == (name if name in DIALECTS else "hermes")


def test_every_dialect_has_a_template() -> None:
    assert {detect(source).name for source in TEMPLATES.values()} == set(DIALECTS)


@each_template
def test_a_call_in_history_is_read_back(name: str) -> None:
    said, calls = read_back(name, tool_use("one", "read", **READ))
    assert calls == [("read", READ)]
    assert "result of one" in said


@each_template
def test_parallel_calls_in_history_are_read_back(name: str) -> None:
    blocks = [tool_use("one", "read", **READ), tool_use("two", "stop")]
    said, calls = read_back(name, *blocks)
    assert calls == [("read", READ), ("stop", {})]
    assert said.index("result of one") < said.index("result of two")


@each_template
def test_text_beside_a_call_is_kept_and_stays(name: str) -> None:
    blocks = [text("I look."), tool_use("one", "read", **READ)]
    said, calls = read_back(name, *blocks)
    assert said.startswith("I look.")
    assert calls == [("read", READ)]
    turns = (("user", "Begin."), ("assistant", blocks), ("user", [tool_result("one", "Found.")]))
    longer = shown(prompt(name, *turns, ("assistant", "It is so."), ("user", "Good.")))
    assert longer.startswith(shown(prompt(name, *turns)).removesuffix("<|start|>assistant"))


def test_one_call_a_message_has_its_result_behind_it() -> None:
    blocks = [tool_use("one", "read", **READ), tool_use("two", "stop")]
    results = [tool_result("two", "second"), tool_result("one", "first")]
    turns = (("user", "Begin."), ("assistant", blocks), ("user", results))
    history = shown(prompt("gpt_oss", *turns))
    order = ["to=functions.read", "functions.read to=", '"first"', "functions.stop to=", '"second"']
    assert sorted(order, key=history.index) == order


def test_late_system_messages_speak_as_the_developer() -> None:
    turns = (("user", "Begin."), ("assistant", "I did."), ("system", "Stop."), ("user", "Go on."))
    history = shown(prompt("gpt_oss", *turns))
    late = "<|end|><|start|>developer<|message|>Stop.<|end|><|start|>user<|message|>Go on."
    assert history.partition("I did.")[2] == late + "<|end|><|start|>assistant"


def test_ids_have_the_form_that_the_template_wants() -> None:
    blocks = [tool_use("one", "read", **READ), tool_use("two", "stop")]
    results = [tool_result("one", "first"), tool_result("two", "second")]
    turns = (("user", "Begin."), ("assistant", blocks), ("user", results))
    history = shown(prompt("kimi", *turns))
    assert "read<|im_middle|>## Return of functions.read:0\nfirst" in history
    assert "stop<|im_middle|>## Return of functions.stop:1\nsecond" in history


@pytest.mark.parametrize("name", ["lfm2", "granite"])
def test_calls_are_written_where_the_template_shows_none(name: str) -> None:
    template = ChatTemplate(TEMPLATES[name], "<s>", "</s>")
    assert template.takes_tools
    assert not template.renders_tool_calls
    settled, dialect = settle(template, None)
    assert settled is template
    assert dialect == DIALECTS[name]


def test_a_form_of_calls_that_is_not_read_is_not_used() -> None:
    template = ChatTemplate(TEMPLATES["unknown"], "<s>", "</s>")
    settled, _ = settle(template, None)
    assert template.takes_tools
    assert not settled.takes_tools
    assert "RUN read" not in shown(prompt("unknown", ("user", "Begin.")))
    hermes = ChatTemplate(TEMPLATES["chatml_tools"], "<s>", "</s>")
    forced, dialect = settle(hermes, DIALECTS["kimi"])
    assert not forced.takes_tools
    assert len(dialect.forms) > len(DIALECTS["kimi"].forms)


def test_a_template_may_change_its_own_lists_only() -> None:
    """It is asked with many conversations, and all have to stay as they are."""
    source = TEMPLATES["chatml_tools"] + "{%- set _ = messages.pop() if messages %}"
    with pytest.raises(Exception, match="can't render"):
        ChatTemplate(source, "<s>", "</s>")

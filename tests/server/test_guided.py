"""Guided replies over HTTP: the model that echoes is held to the tools and schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from starlette.types import ASGIApp

from ratoon.build import build
from ratoon.config import Settings
from tests.server.scripted import Switch
from tests.server.test_engine import ask

LIST = {
    "name": "ls",
    "description": "List.",
    "input_schema": {
        "type": "object",
        "properties": {"depth": {"type": "integer"}},
        "required": ["depth"],
    },
}
STOP = {
    "name": "stop",
    "description": "Stop.",
    "input_schema": {"type": "object", "properties": {}},
}
TOOLS: Any = [LIST, STOP]
CALL = '<tool_call>\n{"name": "ls", "arguments": {"depth": 3}}\n</tool_call>'
ANSWER: Any = {
    "format": {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    }
}


@pytest.fixture
def guided(switch: Switch, server_url: str) -> Iterator[bool]:
    yield from serve(switch, constrain_tools=True)


@pytest.fixture
def unguided(switch: Switch, server_url: str) -> Iterator[bool]:
    yield from serve(switch, constrain_tools=False)


def serve(switch: Switch, *, constrain_tools: bool) -> Iterator[bool]:
    built = build(Settings(model="dummy", n_ctx=4096, constrain_tools=constrain_tools))
    app: ASGIApp = built.app
    switch.app = app
    built.engine.start()
    yield constrain_tools
    built.engine.stop()


def calls(message: anthropic.types.Message) -> list[tuple[str, Any]]:
    return [(block.name, block.input) for block in message.content if block.type == "tool_use"]


def texts(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_a_wrong_call_becomes_a_right_one(guided: bool, shared_client: anthropic.Anthropic) -> None:
    wrong = '<tool_call>\n{"name": "rm", "arguments": {"path": "/"}}\n</tool_call>'
    message = ask(shared_client, f"Text. {wrong}", tools=TOOLS)
    assert texts(message) == "Text."
    assert [name for name, _ in calls(message)] == ["ls"]
    assert isinstance(calls(message)[0][1]["depth"], int)


def test_without_guides_it_stays_as_it_is(
    unguided: bool, shared_client: anthropic.Anthropic
) -> None:
    wrong = CALL.replace("3", '"x"')
    message = ask(shared_client, wrong, tools=TOOLS)
    assert calls(message) == [("ls", {"depth": "x"})]


def test_a_forced_call_comes_at_once(guided: bool, shared_client: anthropic.Anthropic) -> None:
    choice = {"type": "tool", "name": "stop", "disable_parallel_tool_use": True}
    message = ask(shared_client, "Hello", tools=TOOLS, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    assert calls(message) == [("stop", {})]
    assert texts(message) == ""


def test_no_call_comes_where_none_may(guided: bool, shared_client: anthropic.Anthropic) -> None:
    message = ask(shared_client, CALL, tools=TOOLS, tool_choice={"type": "none"})
    assert calls(message) == []
    assert "<tool_call>" not in texts(message)


def test_structured_output_is_json(guided: bool, shared_client: anthropic.Anthropic) -> None:
    message = ask(shared_client, "Say yes", extra_body={"output_config": ANSWER})
    assert isinstance(json.loads(texts(message))["ok"], bool)
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "rm"}},
            "tool_choice.name: Tool 'rm' not found in provided tools",
        ),
        (
            {"tool_choice": {"type": "any"}},
            "tool_choice may only be specified while providing tools",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}},
            "output_config.format.schema: Invalid type: odd",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": {"$ref": "#"}}},
            "output_format.schema: no value that ends fits it",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": {"not": {}}}},
            'output_format.schema: Unimplemented keys: ["not"]',
        ),
    ],
)
def test_what_can_not_be_kept_is_refused(
    guided: bool, shared_client: anthropic.Anthropic, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        ask(shared_client, "Hello", extra_body=fields)
    body: Any = refused.value.body
    assert body["error"] == {"type": "invalid_request_error", "message": message}
    assert texts(ask(shared_client, "Hello")) == "Hello"

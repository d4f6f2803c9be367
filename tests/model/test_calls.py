"""SmolLM2 calls tools of every shape, at temperature 1, and each call is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from ratoon.config import Settings
from tests.guiding import is_valid
from tests.model.live import Live, live
from tests.schemas import AGENT_TOOLS, SERVER_TOOLS

pytestmark = pytest.mark.model


def each_type(schema: dict[str, Any]) -> list[str]:
    """The types that a schema names."""
    named = schema.get("type", [])
    return [named] if isinstance(named, str) else list(named)


def bounded(schema: Any) -> Any:
    """The schema with an end to everything: at temperature 1 a model this small may never close a
    string or a list by itself."""
    if isinstance(schema, list):
        return [bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    limits: dict[str, Any] = {}
    if "string" in each_type(schema) and "enum" not in schema:
        limits = {"maxLength": 24}
    elif schema.get("type") == "array":  # of references: a tree, which must not grow in breadth
        limits = {"maxItems": 1 if "$ref" in schema.get("items", ()) else 2}
    elif schema == {} or schema.get("type") == "object" and "properties" not in schema:
        return {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    if {"number", "integer"} & set(each_type(schema)):
        limits |= {"minimum": 0, "maximum": 1000}
    inner = {key: bounded(value) for key, value in schema.items() if key != "properties"}
    if "properties" in schema:  # names, not a schema
        inner["properties"] = {name: bounded(each) for name, each in schema["properties"].items()}
    return {**limits, **inner}


TOOLS = {name: bounded(schema) for name, schema in {**AGENT_TOOLS, **SERVER_TOOLS}.items()}


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    with live(Settings(n_ctx=4096)) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="any", max_retries=0, timeout=280
    ) as opened:
        yield opened


def ask(client: anthropic.Anthropic, *names: str, **fields: Any) -> Message:
    tools = [
        {"name": name, "description": f"The tool {name}.", "input_schema": TOOLS[name]}
        for name in names
    ]
    body: Any = {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "Use a tool."}],
        **({"tools": tools} if tools else {}),
    }
    for _ in range(3):  # chance may still write on to the limit; what is wrong is never asked again
        # the client no longer knows ``temperature``
        message: Message = client.messages.create(**body, extra_body={"temperature": 1.0, **fields})
        if message.stop_reason != "max_tokens":
            break
    return message


def test_every_shape_is_called_validly(client: anthropic.Anthropic) -> None:
    def call(name: str) -> Message:
        choice = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
        return ask(client, name, tool_choice=choice)

    with ThreadPoolExecutor(4) as pool:
        replies = dict(zip(TOOLS, pool.map(call, TOOLS), strict=True))
    for name, message in replies.items():
        assert message.stop_reason == "tool_use", name
        [block] = message.content
        assert block.type == "tool_use"
        assert block.name == name
        assert is_valid(json.dumps(block.input), TOOLS[name]), block.input


def test_any_tool_may_be_called_and_nothing_else(client: anthropic.Anthropic) -> None:
    names = ("run", "find", "nothing")
    message = ask(client, *names, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    [block] = message.content
    assert block.type == "tool_use"
    assert block.name in names
    assert is_valid(json.dumps(block.input), TOOLS[block.name])


def test_structured_output_is_a_value(client: anthropic.Anthropic) -> None:
    schema = {**TOOLS["report"], "required": ["findings"]}
    output = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(client, output_config=output)
    [block] = message.content
    assert block.type == "text"
    assert is_valid(block.text, schema)
    assert message.stop_reason == "end_turn"

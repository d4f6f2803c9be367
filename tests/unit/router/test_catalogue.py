"""Tools as clients send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratoon.errors import InvalidRequest
from ratoon.router.catalogue import MAX_TOOL_BYTES, MAX_TOOLS, Catalogue, check_id, parse_tools

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Stadt, z. B. Köln"}},
    "required": ["city"],
}
OPENAI = {
    "type": "function",
    "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA},
}
RESPONSES = {"type": "function", "name": "weather", "description": "Now.", "parameters": SCHEMA}
ANTHROPIC = {"name": "weather", "description": "Now.", "input_schema": SCHEMA}


HUGE = "x" * (1 << 20)


FLAT = {"name": "weather", "description": "Now.", "parameters": SCHEMA}


BOTH = FLAT | {"input_schema": None}


@pytest.mark.parametrize("form", [OPENAI, RESPONSES, ANTHROPIC, FLAT, BOTH])
def test_each_form_gives_the_same_tool_and_is_given_back(form: dict[str, Any]) -> None:
    (tool,) = parse_tools([form])
    assert (tool.name, tool.description, tool.parameters) == ("weather", "Now.", SCHEMA)
    assert tool.source is form
    assert "Köln" in tool.line


def test_the_order_of_keys_does_not_count_but_that_of_tools_does() -> None:
    turned = json.loads(json.dumps(OPENAI))
    turned["function"] = dict(reversed(turned["function"].items()))
    assert Catalogue(parse_tools([OPENAI])).digest() == Catalogue(parse_tools([turned])).digest()
    other = {"name": "other"}
    one, two = (Catalogue(parse_tools(tools)) for tools in ([OPENAI, other], [other, OPENAI]))
    assert one.digest() != two.digest()
    assert Catalogue(one.tools, "Be brief.").digest() != one.digest()


def test_a_tool_may_have_no_parameters_and_no_description() -> None:
    (tool,) = parse_tools([{"name": "ping", "description": None, "input_schema": None}])
    assert tool.parameters == {"type": "object", "properties": {}}


def test_a_tool_is_measured_as_it_was_sent() -> None:
    room = MAX_TOOL_BYTES - len(json.dumps({"name": "x", "junk": ""}))
    (tool,) = parse_tools([{"name": "x", "junk": "ö" * (room // 2)}])
    assert tool.source["junk"] == "ö" * (room // 2)
    with pytest.raises(InvalidRequest, match="larger than"):
        parse_tools([{"name": "x", "junk": "ö" * (room // 2 + 1)}])


def _endless() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def _deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(70):
        value = {"properties": {"x": value}}
    return value


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (None, "tools: Input should be a list"),
        ({}, "tools: Input should be a list"),
        ([], "tools: Input should be a list of at least one tool"),
        ([1], r"tools\.0: Input should be an object"),
        (
            [OPENAI, {"type": "function", "function": 3}],
            r"tools\.1\.function: Input should",
        ),
        ([{"type": "function", "function": {}}], r"tools\.0\.function\.name: Field required"),
        ([{"name": ""}], r"tools\.0\.name: must be"),
        ([{"name": "a b"}], r"tools\.0\.name: must be"),
        ([{"name": "<|im_end|>"}], r"tools\.0\.name: must be"),
        ([{"name": "x" * 129}], r"tools\.0\.name: must be"),
        ([{"name": ["x"]}], r"tools\.0\.name: must be"),
        ([{"name": "x", "description": 1}], r"tools\.0\.description: Input should be a string"),
        ([{"name": "x", "input_schema": {"maximum": float("inf")}}], "without infinities"),
        ([{"name": "x", "description": "\ud83d"}], r"tools\.0: .*halves of surrogate pairs"),
        ([{"name": "x", "input_schema": _endless()}], r"tools\.0: .*endless nesting"),
        ([{"name": "x", "parameters": []}], r"tools\.0\.parameters: Input should be an object"),
        ([{"name": "x", "input_schema": []}], r"tools\.0\.input_schema: Input should be an object"),
        ([{"name": "x", "input_schema": {"type": "string"}}], "input_schema.type: Input should be"),
        (
            [{"name": "x", "input_schema": {"properties": 1}}],
            "properties: Input should be",
        ),
        ([OPENAI, {"name": "x", "input_schema": {"d": HUGE}}], r"tools\.1: larger than"),
        ([OPENAI, {"name": "x", "description": HUGE}], r"tools\.1: larger than"),
        ([OPENAI, {"name": "x", "junk": HUGE}], r"tools\.1: larger than"),
        ([OPENAI, {"name": "x", HUGE: 1}], r"tools\.1: larger than"),
        ([OPENAI, {"function": {"name": "x"}, "junk": [HUGE]}], r"tools\.1: larger than"),
        ([{"name": "x", "input_schema": _deep()}], "nested deeper than"),
        ([OPENAI, ANTHROPIC], "Tool names must be unique: 'weather'"),
        ([{"name": f"t{n}"} for n in range(MAX_TOOLS + 1)], "at most 1000 tools"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tools: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_tools(tools)


def test_tools_are_added_at_the_end_under_new_names() -> None:
    catalogue = Catalogue(parse_tools([OPENAI]), "Be brief.")
    more = catalogue.with_tools(parse_tools([{"name": "ping"}]))
    assert [tool.name for tool in more.tools] == ["weather", "ping"]
    assert more.system_prompt == "Be brief."
    with pytest.raises(InvalidRequest, match="unique"):
        more.with_tools(parse_tools([{"name": "ping"}]))


@pytest.mark.parametrize("value", ["", "..", ".", "a/b", "a b", "ä", "x" * 129, "a\n"])
def test_an_id_is_checked(value: str) -> None:
    with pytest.raises(InvalidRequest, match="domain_id"):
        check_id(value)
    assert check_id("retail-2.v_1") == "retail-2.v_1"

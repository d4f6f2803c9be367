"""Arguments against schemas."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ratoon.router.fault import MAX_TOLD, fault_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "size": {"enum": ["s", "m"]},
        "to": {"$ref": "#/$defs/to"},
    },
    "required": ["id"],
    "additionalProperties": False,
    "$defs": {"to": {"type": "array", "items": {"type": "string"}}},
}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"id": 1, "size": "s", "to": ["a"]}, ""),
        ({"size": "s"}, "'id' is a required property"),
        ({"id": "1"}, "id: '1' is not of type 'integer'"),
        ({"id": 1, "size": "x"}, "size: 'x' is not one of"),
        ({"id": 1, "to": ["a", 2]}, "to.1: 2 is not of type 'string'"),
        ({"id": 1, "more": 2}, "Additional properties are not allowed"),
    ],
)
def test_what_breaks_the_schema_is_told(arguments: dict[str, Any], reason: str) -> None:
    found = fault_of(SCHEMA, arguments)
    assert found.startswith(reason)
    assert bool(found) is bool(reason)


def test_a_pattern_that_would_take_forever_is_not_tried() -> None:
    trap = {"properties": {"x": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}}
    began_s = time.perf_counter()
    assert fault_of(trap, {"x": "a" * 60 + "!", "b" * 60 + "!": 1}) == ""
    assert time.perf_counter() - began_s < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 3},
        {"type": "nothing"},
        {"$ref": "http://127.0.0.1:9/schema.json"},
        {"$ref": "#/nowhere"},
        {"$schema": "made-up", "required": 3},
    ],
)
def test_an_unsound_schema_lets_everything_pass(schema: dict[str, Any]) -> None:
    assert fault_of(schema, {"x": 1}) == ""


def test_a_reason_is_not_longer_than_a_model_wants_to_read() -> None:
    assert len(fault_of({"properties": {"x": {"type": "integer"}}}, {"x": "y" * 9999})) <= MAX_TOLD


def doubling(n: int) -> dict[str, Any]:
    """A schema that looks at its value 2^n times."""
    steps: dict[str, Any] = {
        f"d{i}": {"allOf": 2 * [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(n)
    }
    return {**steps, f"d{n}": {"type": "string"}}


@pytest.mark.parametrize("rule", ["properties", "unevaluatedProperties"])
def test_a_schema_that_asks_for_endless_work_is_no_sound_one(rule: str) -> None:
    shape = {"x": {"$ref": "#/$defs/d0"}} if rule == "properties" else {"$ref": "#/$defs/d0"}

    def fault(n: int) -> str:
        return fault_of({rule: shape, "$defs": doubling(n), "required": ["y"]}, {"x": "a"})

    assert fault(3) == "'y' is a required property"
    if rule == "properties":  # the other is not looked at
        assert fault(16) == "", "it was gone through to the end"
    fault(40)


def test_an_inner_schema_brings_no_rules_of_its_own() -> None:
    inner = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}
    assert fault_of({"properties": {"x": inner}}, {"x": "b"}) == ""

"""Python functions as tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from ratoon.errors import InvalidRequest
from ratoon.router.execute import FunctionExecutor, Outcome, executor
from ratoon.router.hosts import Hosts


def twice(n: int) -> int:
    return 2 * n


async def later(name: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"name": name}


def broken() -> None:
    raise RuntimeError("sk-secret")


def deep() -> Any:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


def circle() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "twice": twice,
    "later": later,
    "broken": broken,
    "moment": lambda: {"at": datetime(2024, 5, 6)},
    "nan": lambda: {"price": float("nan")},
    "half": lambda: "\ud83d",
    "deep": deep,
    "circle": circle,
}


def run(tool: str, **arguments: Any) -> Outcome:
    return asyncio.run(FunctionExecutor(FUNCTIONS).run(tool, arguments))


def test_functions_and_coroutines_are_called_with_their_arguments() -> None:
    assert run("twice", n=4) == Outcome(8)
    assert run("later", name="ä") == Outcome({"name": "ä"})
    assert run("later", name="ä").text == '{"name": "ä"}'


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("nothing", {}, "no function is registered"),
        ("broken", {}, "RuntimeError"),
        ("twice", {"m": 1}, "TypeError"),
    ],
)
def test_what_fails_is_told_without_its_message(
    tool: str, arguments: dict[str, Any], reason: str
) -> None:
    outcome = run(tool, **arguments)
    assert outcome.is_error
    assert reason in outcome.value["error"]
    assert "sk-secret" not in outcome.text


def test_what_is_no_json_is_shown_as_text() -> None:
    assert run("moment") == Outcome({"at": "2024-05-06 00:00:00"})


@pytest.mark.parametrize("tool", ["nan", "half", "deep", "circle"])
def test_what_no_json_text_can_hold_is_a_failure(tool: str) -> None:
    outcome = run(tool)
    assert outcome.is_error
    assert "the tool failed" in outcome.text


def test_an_unknown_executor_is_no_mock() -> None:
    for spec in ("", "Mock", "callable ", "localhost:5000"):
        with pytest.raises(InvalidRequest, match="tool_executor"):
            executor(spec, Hosts(has_local=True), FUNCTIONS)
    assert isinstance(executor("callable", Hosts(), FUNCTIONS), FunctionExecutor)

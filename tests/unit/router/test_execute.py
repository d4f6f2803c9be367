"""Python functions as tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


FUNCTIONS: dict[str, Callable[..., Any]] = {"twice": twice, "later": later, "broken": broken}


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
    assert Outcome({1, 2}).text in ('"{1, 2}"', '"{2, 1}"')


def test_an_unknown_executor_is_no_mock() -> None:
    for spec in ("", "Mock", "callable ", "localhost:5000"):
        with pytest.raises(InvalidRequest, match="tool_executor"):
            executor(spec, Hosts(has_local=True), FUNCTIONS)
    assert isinstance(executor("callable", Hosts(), FUNCTIONS), FunctionExecutor)

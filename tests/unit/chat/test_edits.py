"""Context edits: what is cleared, when, and that it stays so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ratoon.chat.edits import CLEARED
from ratoon.chat.render import Prompt
from tests.unit.chat.fakes import (
    CHATML,
    renderer,
    request,
    shown,
    text,
    tool,
    tool_result,
    tool_use,
)

Messages = list[tuple[str, Any]]
RESULT = "r" * 200
MADE = renderer(CHATML)


def uses(n: int, size: int = 200, name: str = "read", first: int = 0) -> Messages:
    """So many rounds of a call and its result."""
    rounds: Messages = []
    for i in range(first, first + n):
        rounds.append(("assistant", [tool_use(f"t{i}", name, path=f"p{i}")]))
        rounds.append(("user", [tool_result(f"t{i}", f"<{i}>" + "r" * size)]))
    return rounds


def clear(**fields: Any) -> dict[str, Any]:
    amounts = {
        "trigger": "tool_uses",
        "trigger_tokens": "input_tokens",
        "keep": "tool_uses",
        "clear_at_least": "input_tokens",
    }
    edit: dict[str, Any] = {"type": "clear_tool_uses_20250919"}
    for key, value in fields.items():
        is_amount = key in amounts
        edit[key.removesuffix("_tokens")] = (
            {"type": amounts[key], "value": value} if is_amount else value
        )
    return edit


def keep_thinking(keep: Any) -> dict[str, Any]:
    return {"type": "clear_thinking_20251015", "keep": keep}


def edited(messages: Messages, *edits: dict[str, Any], **fields: Any) -> Prompt:
    management = {"edits": list(edits)}
    return MADE.render(request(*messages, context_management=management, **fields))


def kept(prompt: Prompt, n: int) -> list[int]:
    told = shown(prompt)
    return [i for i in range(n) if f"<{i}>" in told]


def test_old_results_are_cleared_and_the_last_stay() -> None:
    messages: Messages = [("user", "x"), *uses(6)]
    prompt = edited(messages, clear(trigger=5, keep=2))
    assert kept(prompt, 6) == [4, 5]
    assert shown(prompt).count(CLEARED) == 4
    assert shown(prompt).count('"name": "read"') == 6
    (done,) = prompt.edits
    assert done["type"] == "clear_tool_uses_20250919"
    assert done["cleared_tool_uses"] == 4
    assert done["cleared_input_tokens"] == 4 * (203 - len(CLEARED))


def test_nothing_happens_below_the_trigger() -> None:
    messages: Messages = [("user", "x"), *uses(5)]
    plain = MADE.render(request(*messages))
    for edit in (clear(trigger=5, keep=2), clear(trigger_tokens=5000), clear()):
        prompt = edited(messages, edit)
        assert prompt.tokens == plain.tokens
        assert prompt.edits == []


def test_the_trigger_may_count_tokens_of_the_head_too() -> None:
    messages: Messages = [("user", "x"), *uses(5)]
    n_tokens = len(MADE.render(request(*messages)).tokens)
    edit = clear(trigger_tokens=n_tokens + 100, keep=1)
    assert kept(edited(messages, edit), 5) == [0, 1, 2, 3, 4]
    assert kept(edited(messages, edit, system="s" * 5000), 5) == [4]
    assert kept(edited(messages, edit, tools=[tool("t", description="d" * 5000)]), 5) == [4]


def test_clear_at_least() -> None:
    messages: Messages = [("user", "x"), *uses(6)]
    spared = 4 * (203 - len(CLEARED))
    assert kept(edited(messages, clear(trigger=5, keep=2, clear_at_least=spared)), 6) == [4, 5]
    assert edited(messages, clear(trigger=5, keep=2, clear_at_least=spared + 1)).edits == []


def test_excluded_tools_and_those_that_load_tools_stay() -> None:
    loads = {"type": "tool_reference", "tool_name": "later"}
    messages: Messages = [
        ("user", "x"),
        *uses(2, name="precious"),
        ("assistant", [tool_use("s", "find")]),
        ("user", [tool_result("s", [loads])]),
        *uses(3, first=2),
    ]
    tools = [tool("read"), tool("later", defer_loading=True)]
    edit = clear(trigger=5, keep=1, exclude_tools=["precious"])
    prompt = edited(messages, edit, tools=tools)
    assert kept(prompt, 5) == [0, 1, 4]
    assert "later" in prompt.schemas


@pytest.mark.parametrize(
    ("choice", "n_left"), [(True, 2), (["read"], 2), (["other"], 6), (False, 6), (None, 6)]
)
def test_inputs_may_be_cleared_too(choice: Any, n_left: int) -> None:
    messages: Messages = [("user", "x"), *uses(6)]
    prompt = edited(messages, clear(trigger=5, keep=2, clear_tool_inputs=choice))
    assert shown(prompt).count('"path": "p') == n_left
    assert shown(prompt).count('"name": "read"') == 6


def test_errors_that_are_cleared_are_none_any_more() -> None:
    messages: Messages = [
        ("user", "x"),
        ("assistant", [tool_use("e", "read")]),
        ("user", [tool_result("e", "it broke " * 20, is_error=True)]),
        *uses(3),
    ]
    assert "Error" not in shown(edited(messages, clear(trigger=3, keep=1)))


def test_clearing_goes_in_steps() -> None:
    """Between two steps every prompt extends the one before it."""
    n_steps = 0
    before = edited([("user", "x")], clear(trigger=10, keep=2))
    for n in range(1, 60):
        prompt = edited([("user", "x"), *uses(n)], clear(trigger=10, keep=2))
        assert len(kept(prompt, n)) <= 10
        n_steps += not shown(prompt).startswith(shown(before).removesuffix("assistant\n"))
        before = prompt
    assert n_steps == 6  # at 11 uses, and after every 9 more


def test_what_can_not_be_cleared_does_not_make_it_creep() -> None:
    """The trigger can't be reached any more, so it waits for another eighth of it."""
    n_steps, before = 0, ""
    for n in range(1, 40):
        messages: Messages = [("user", "x" * 5000), *uses(n)]
        told = shown(edited(messages, clear(trigger_tokens=4000, keep=1)))
        n_steps += not told.startswith(before.removesuffix("assistant\n"))
        before = told
    assert 5 < n_steps < 20


rounds = st.lists(st.integers(0, 400), min_size=1, max_size=25)


@settings(deadline=None, max_examples=60)
@given(rounds, st.integers(0, 8), st.integers(0, 5), st.integers(0, 300))
def test_a_longer_conversation_clears_what_its_beginning_did(
    sizes: list[int], trigger: int, keep: int, at_least: int
) -> None:
    edit = clear(trigger=trigger, keep=keep, clear_at_least=at_least)
    gone: set[int] = set()
    messages: Messages = [("user", "x")]
    for n, size in enumerate(sizes, 1):
        messages += uses(1, size, first=n - 1)
        prompt = edited(messages, edit)
        assert edited(messages, edit).tokens == prompt.tokens
        now = set(range(n)) - set(kept(prompt, n))
        assert gone <= now
        assert not now & set(range(n - keep, n))
        gone = now


THINKING: Messages = [
    ("user", "x"),
    ("assistant", [{"type": "thinking", "thinking": "hm " * 5, "signature": "s"}, text("a")]),
    ("user", "y"),
    ("assistant", [{"type": "redacted_thinking", "data": "d"}, text("b")]),
    ("user", "z"),
    ("assistant", [{"type": "thinking", "thinking": "so " * 5, "signature": "s"}, text("c")]),
    ("user", "w"),
]


@pytest.mark.parametrize("keep", ["all", {"type": "all"}, {"type": "thinking_turns", "value": 3}])
def test_all_thinking_may_be_kept(keep: Any) -> None:
    prompt = edited(THINKING, keep_thinking(keep))
    assert prompt.edits == []
    assert prompt.tokens == MADE.render(request(*THINKING)).tokens


def test_old_thinking_is_cleared() -> None:
    (done,) = edited(THINKING, keep_thinking({"type": "thinking_turns", "value": 1})).edits
    assert done["cleared_thinking_turns"] == 2
    assert done["cleared_input_tokens"] == len("hm " * 5)
    (done,) = edited(THINKING, {"type": "clear_thinking_20251015"}).edits
    assert done["cleared_thinking_turns"] == 2


def test_both_edits() -> None:
    messages = [*THINKING, *uses(4)]
    prompt = edited(messages, {"type": "clear_thinking_20251015"}, clear(trigger=3, keep=1))
    assert [done["type"] for done in prompt.edits] == [
        "clear_thinking_20251015",
        "clear_tool_uses_20250919",
    ]


@pytest.mark.parametrize(
    "edit",
    [
        {"type": "clear_everything"},
        {"type": "clear_tool_uses_20250919", "keep": {"type": "input_tokens", "value": 1}},
        {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": -1}},
        {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}},
        {"type": "clear_thinking_20251015", "keep": "some"},
    ],
)
def test_edits_that_are_none(edit: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        edited([("user", "x")], edit)

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.chat.normalise import (
    BILLING_PREFIX,
    TOTAL_TOKENS,
    Conversation,
    Rules,
    drop_billing,
    fix_reminders,
    fix_total_tokens,
    normalise,
)
from tests.unit.chat.fakes import request, text

HEADER = f"{BILLING_PREFIX} cc_version=2.1.332.94d; cc_entrypoint=sdk-cli;"
LEFT = "<total_tokens>14999999 tokens left</total_tokens>"


def plain(*messages: tuple[str, Any], rules: Rules | None = None, **fields: Any) -> Conversation:
    return normalise(request(*messages, **fields), rules or Rules())


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (HEADER, ""),
        (HEADER + " cc_is_subagent=true; unknown-key=;", ""),
        (HEADER + " cch=a5145;You are an agent.", "You are an agent."),
        (HEADER + " You are an agent.\nBe brief.", "You are an agent.\nBe brief."),
        (HEADER + "\nYou are an agent.", "You are an agent."),
    ],
)
def test_billing_pairs_go_and_the_text_behind_stays(header: str, kept: str) -> None:
    assert drop_billing(header) == kept


@pytest.mark.parametrize(
    "malformed",
    [
        BILLING_PREFIX,
        f"{BILLING_PREFIX} no pair here;",
        f"{BILLING_PREFIX} cc_version=1",
        f"{BILLING_PREFIX} cc_version=1; cc_entrypoint=cli",
        f" {HEADER}",
        HEADER.upper(),
        f"Note: {HEADER}",
    ],
)
def test_malformed_header_stays_untouched(malformed: str) -> None:
    assert drop_billing(malformed) is None
    found = plain(("user", "hi"), system=[text(malformed)])
    assert [block.text for block in found.system] == [malformed]
    assert "billing" not in found.fired


def test_header_in_string_system_and_behind_the_first_block() -> None:
    assert plain(("user", "hi"), system=HEADER).system == ()
    found = plain(("user", "hi"), system=[text("first"), text(HEADER)])
    assert [block.text for block in found.system] == ["first", HEADER]


@given(st.lists(st.sampled_from([HEADER, "\n", " ", "a=1;", "a=1", "words", LEFT]), max_size=6))
def test_system_rules_are_idempotent(parts: list[str]) -> None:
    once = plain(("user", "hi"), system=[text("".join(parts)), text(HEADER)])
    again = plain(("user", "hi"), system=[text(block.text) for block in once.system])
    assert [b.text for b in again.system] == [b.text for b in once.system]
    assert not again.fired


@given(st.text())
def test_text_without_markers_is_untouched(body: str) -> None:
    assert drop_billing("x" + body) is None
    assert fix_total_tokens(body.replace("<", "")) == body.replace("<", "")
    assert fix_reminders(body) == body


@pytest.mark.parametrize("left", [LEFT, LEFT.replace("14999999", "0"), TOTAL_TOKENS])
def test_total_tokens_become_one_constant(left: str) -> None:
    assert fix_total_tokens(f"a {left} b {left}") == f"a {TOTAL_TOKENS} b {TOTAL_TOKENS}"


@pytest.mark.parametrize("left", ["<total_tokens>-1 tokens left</total_tokens>", LEFT[:-1]])
def test_other_total_tokens_stay(left: str) -> None:
    assert fix_total_tokens(left) == left


def test_total_tokens_only_where_the_system_speaks() -> None:
    found = plain(
        ("user", f"{LEFT}<system-reminder>{LEFT}</system-reminder>{LEFT}<system-reminder>{LEFT}"),
        ("assistant", LEFT),
        ("system", LEFT),
        system=LEFT,
    )
    user, assistant, late = (turn.blocks[0] for turn in found.turns)
    assert user.text == (  # type: ignore[union-attr]
        f"{LEFT}<system-reminder>{TOTAL_TOKENS}</system-reminder>{LEFT}<system-reminder>{LEFT}"
    )
    assert assistant.text == LEFT  # type: ignore[union-attr]
    assert late.text == TOTAL_TOKENS  # type: ignore[union-attr]
    assert found.system[0].text == TOTAL_TOKENS
    assert found.fired == {"total_tokens": 3}


def test_many_open_reminders_take_linear_time() -> None:
    body = "<system-reminder>" * 200_000
    assert fix_reminders(body) == body


def test_empty_text_goes_and_is_counted() -> None:
    found = plain(("user", [text(""), text("hi")]), ("system", []), ("assistant", ""), system="")
    assert [turn.role for turn in found.turns] == ["user"]
    assert found.fired == {"empty_text": 3}


def test_run_behind_the_first_user_message_is_hoisted() -> None:
    found = plain(
        ("user", "task"), ("system", "a"), ("system", []), ("system", "b"), ("assistant", "x")
    )
    assert [turn.index for turn in found.turns] == [1, 3, 0, 4]
    assert (found.n_head, found.has_late_run, found.fired["hoist"]) == (2, True, 2)


def test_later_runs_stay() -> None:
    found = plain(("system", "s"), ("user", "t"), ("assistant", "x"), ("system", "a"))
    assert [turn.index for turn in found.turns] == [0, 1, 2, 3]
    assert (found.n_head, found.has_late_run) == (1, False)


def test_rules_can_be_off() -> None:
    off = Rules(drop_billing=False, fix_total_tokens=False, hoist_system=False)
    found = plain(("user", "t"), ("system", LEFT), system=HEADER, rules=off)
    assert found.system[0].text == HEADER
    assert [turn.role for turn in found.turns] == ["user", "system"]
    assert found.turns[1].blocks[0].text == LEFT  # type: ignore[union-attr]
    assert found.has_late_run
    assert not found.fired

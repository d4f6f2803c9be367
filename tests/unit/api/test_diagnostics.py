"""Where a prompt left an earlier one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ratoon.api.diagnostics import Fingerprints, divergence, fingerprint
from ratoon.chat.render import Prompt
from tests.unit.chat.fakes import renderer, request, tool

MADE = renderer()
LONG = "word " * 100


def render(*messages: tuple[str, Any], **fields: Any) -> Prompt:
    return MADE.render(request(*messages, **fields))


START: list[tuple[str, Any]] = [("user", LONG), ("assistant", LONG), ("user", LONG)]
FIELDS: dict[str, Any] = {"system": LONG, "tools": [tool("a"), tool("b")]}
BEFORE = render(*START, **FIELDS)
MORE: list[tuple[str, Any]] = [*START, ("assistant", "y"), ("user", "z")]
LATE: list[tuple[str, Any]] = [("user", LONG), ("assistant", "else"), *MORE[2:]]


def kind_and_place(prompt: Prompt, model: str = "m") -> tuple[str, str] | None:
    found = divergence(fingerprint("m", BEFORE), fingerprint(model, prompt), prompt.tokens)
    if found is None:
        return None
    assert 0 <= found.n_shared <= found.n_tokens == len(BEFORE.tokens)
    assert prompt.tokens[: found.n_shared] == BEFORE.tokens[: found.n_shared]
    assert prompt.tokens[: found.n_shared + 64] != BEFORE.tokens[: found.n_shared + 64]
    return found.kind, found.place


@pytest.mark.parametrize(
    ("messages", "fields", "expected"),
    [
        (START, {}, None),
        (MORE, {}, None),
        (MORE, {"system": "other"}, ("system_changed", "system")),
        (MORE, {"tools": [tool("b"), tool("a")]}, ("tools_changed", "tools")),
        (MORE, {"tools": None, "system": "other"}, ("system_changed", "system")),
        (LATE, {}, ("messages_changed", "messages.1")),
        (START[:1], {}, ("messages_changed", "messages.1")),
        ([("user", "short"), *MORE[1:]], {}, ("messages_changed", "messages.0")),
    ],
)
def test_the_first_part_that_differs(
    messages: list[tuple[str, Any]], fields: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    assert kind_and_place(render(*messages, **FIELDS | fields)) == expected


def test_the_name_of_the_model_is_no_divergence_by_itself() -> None:
    assert kind_and_place(render(*MORE, **FIELDS), model="other") is None


def test_what_no_rule_lets_differ_is_none() -> None:
    """A billing header, marks, and a single block written as text."""
    billing = "x-anthropic-billing-header: cc_version=1;"
    system = [{"type": "text", "text": billing}, {"type": "text", "text": LONG}]
    mark = {"cache_control": {"type": "ephemeral"}}
    marked = [("user", [{"type": "text", "text": LONG, **mark}]), *MORE[1:]]
    assert kind_and_place(render(*marked, **FIELDS | {"system": system})) is None


def test_tokens_that_differ_for_no_visible_reason() -> None:
    prompt = render(*MORE, **FIELDS)
    tokens = [prompt.tokens[0] + 1, *prompt.tokens[1:]]
    now = fingerprint("m", Prompt(tokens, (), {}, False, False, 0, outline=prompt.outline))
    found = divergence(fingerprint("m", BEFORE), now, tokens)
    assert found is not None
    assert found.reason == {"type": "unavailable"}
    other = fingerprint("n", Prompt(tokens, (), {}, False, False, 0, outline=prompt.outline))
    found = divergence(fingerprint("m", BEFORE), other, tokens)
    assert found is not None
    assert found.reason["type"] == "model_changed"


def test_the_missed_tokens_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratoon.api.diagnostics")
    prints = Fingerprints()
    prints.remember("msg_1", fingerprint("m", BEFORE))
    prompt = render(*LATE, **FIELDS)
    told = prints.diagnose("msg_1", fingerprint("m", prompt), prompt.tokens)
    assert told is not None
    reason = told["cache_miss_reason"]
    assert reason["type"] == "messages_changed"
    n_same = next(
        i for i, (a, b) in enumerate(zip(BEFORE.tokens, prompt.tokens, strict=False)) if a != b
    )
    n_missed = len(BEFORE.tokens) - n_same
    assert n_missed <= reason["cache_missed_input_tokens"] < n_missed + 64
    n_shared = len(BEFORE.tokens) - reason["cache_missed_input_tokens"]
    expected = f"leaves msg_1 at token {n_shared} of {len(BEFORE.tokens)} (messages.1)"
    assert caplog.messages == [expected]


def test_replies_that_were_never_given_or_are_forgotten() -> None:
    prints = Fingerprints(capacity=2)
    now = fingerprint("m", BEFORE)
    missing = {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert prints.diagnose("msg_1", now, BEFORE.tokens) == missing
    for name in ("a", "b"):
        prints.remember(name, now)
    assert prints.diagnose("a", now, BEFORE.tokens) is None
    prints.remember("c", now)
    assert len(prints) == 2
    assert prints.diagnose("a", now, BEFORE.tokens) is None
    assert prints.diagnose("b", now, BEFORE.tokens) == missing

"""Conversations keep the form they started with."""

from __future__ import annotations

from typing import Any

from ratoon import wire
from ratoon.api.forms import ConversationForms, ConversationKey, conversation_key, has_reply

SESSION = {"x-claude-code-session-id": "s"}


def ask(*messages: tuple[str, Any]) -> wire.CountTokensRequest:
    body = {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages]}
    return wire.CountTokensRequest.model_validate(body)


def key(n: int) -> ConversationKey:
    return ConversationKey("s", "", bytes([n]))


def test_the_first_form_holds() -> None:
    forms = ConversationForms()
    assert forms.recall(key(1)) is None
    assert forms.settle(key(1), False) is False
    assert forms.settle(key(1), True) is False
    assert forms.recall(key(1)) is False
    assert forms.settle(key(2), True) is True


def test_only_the_latest_are_kept() -> None:
    forms = ConversationForms(capacity=2)
    forms.settle(key(1), True)
    forms.settle(key(2), True)
    forms.recall(key(1))
    forms.settle(key(3), True)
    assert [forms.recall(key(n)) for n in (1, 2, 3)] == [True, None, True]
    assert len(forms) == 2


def test_a_client_without_a_session_has_no_key() -> None:
    assert conversation_key({}, ask(("user", "a"))) is None
    assert conversation_key({"x-claude-code-session-id": ""}, ask(("user", "a"))) is None


def test_the_key_names_session_agent_and_first_message() -> None:
    base = conversation_key(SESSION, ask(("user", "a")))
    agent = SESSION | {"x-claude-code-agent-id": "x"}
    assert conversation_key(SESSION, ask(("user", "a"), ("assistant", "b"))) == base
    assert conversation_key(SESSION, ask(("system", "s"), ("user", "a"))) == base
    assert conversation_key(SESSION, ask(("user", "b"))) != base
    assert conversation_key(agent, ask(("user", "a"))) != base
    assert conversation_key(SESSION, ask(("system", "s"))) != base


def test_spellings_of_one_message_share_a_key() -> None:
    block = {"type": "text", "text": "a"}
    marked = block | {"cache_control": {"type": "ephemeral"}}
    keys = [conversation_key(SESSION, ask(("user", c))) for c in ("a", [block], [marked])]
    assert len(set(keys)) == 1
    assert conversation_key(SESSION, ask(("user", [block, block]))) not in keys


def test_has_reply() -> None:
    assert not has_reply(ask(("user", "a"), ("system", "b")))
    assert has_reply(ask(("user", "a"), ("assistant", "b")))

"""Reasoning over HTTP: the switch, the lock, thinking blocks and their signature."""

from __future__ import annotations

import logging
from typing import Any

import anthropic
import httpx
import pytest

from ratoon import wire
from ratoon.api.service import Service
from ratoon.api.think import Signer, ThinkSwitch
from tests.server.scripted import ScriptedEngine, say

ENABLED = {"type": "enabled", "budget_tokens": 1024}
ADAPTIVE = {"type": "adaptive", "display": "updates"}
OMITTED = {"type": "adaptive", "display": "omitted"}
REPLY = "Let me see.\n</think>\n\nYes."


def body(thinking: dict[str, Any] | None, **fields: Any) -> dict[str, Any]:
    asked = {"model": "m", "max_tokens": 2048, "messages": [{"role": "user", "content": "x"}]}
    return {**asked, **fields, **({"thinking": thinking} if thinking else {})}


@pytest.mark.parametrize("thinking", [ENABLED, ADAPTIVE])
def test_reasoning_is_a_signed_block(
    client: anthropic.Anthropic, engine: ScriptedEngine, service: Service, thinking: dict[str, Any]
) -> None:
    engine.script = say(REPLY)
    with client.messages.stream(**body(thinking)) as stream:
        streamed = stream.get_final_message()
    whole = client.messages.create(**body(thinking))
    for message in (streamed, whole):
        thought, text = message.content
        assert isinstance(thought, anthropic.types.ThinkingBlock)
        assert isinstance(text, anthropic.types.TextBlock)
        assert (thought.thinking, text.text) == ("Let me see.", "Yes.")
        back = wire.ThinkingBlock.model_validate(thought.model_dump())
        assert service.signer.verifies(back)
        forged = back.model_copy(update={"thinking": "Let me lie."})
        assert not service.signer.verifies(forged)
        assert not Signer(b"other").verifies(back)
        assert message.usage.output_tokens == len(REPLY)


def test_omitted_reasoning_leaves_its_signature(
    client: anthropic.Anthropic, engine: ScriptedEngine, service: Service
) -> None:
    engine.script = say(REPLY)
    thought, text = client.messages.create(**body(OMITTED)).content
    assert isinstance(thought, anthropic.types.ThinkingBlock)
    assert (thought.thinking, text.type) == ("", "text")
    assert thought.signature == service.signer.sign("Let me see.")


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
def test_reasoning_nobody_asked_for_is_hidden(
    client: anthropic.Anthropic, engine: ScriptedEngine, thinking: dict[str, Any] | None
) -> None:
    engine.script = say(f"<think>{REPLY}")
    (text,) = client.messages.create(**body(thinking)).content
    assert isinstance(text, anthropic.types.TextBlock)
    assert text.text == "Yes."


def test_blocks_of_reasoning_are_accepted_back(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = say(REPLY)
    first = client.messages.create(**body(ADAPTIVE))
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": "more"},
    ]
    assert client.messages.create(**body(ADAPTIVE, messages=messages)).stop_reason == "end_turn"


def test_echoed_blocks_are_counted_by_their_signature(
    client: anthropic.Anthropic, http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script = say(REPLY)
    own = client.messages.create(**body(ENABLED)).content[0].model_dump()
    omitted = client.messages.create(**body(OMITTED)).content[0].model_dump()
    forged, unsigned = {**own, "thinking": "Let me lie."}, {**own, "signature": ""}
    blocks = [own, own, forged, unsigned, omitted, {"type": "text", "text": "Yes."}]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": "more"},
    ]
    asked = body(ENABLED, messages=messages)
    client.messages.count_tokens(messages=asked["messages"], model="m")
    client.messages.create(**asked)
    page = http.get("/metrics").text
    assert 'ratoon_thinking_blocks_total{signature="own"} 2.0' in page
    assert 'ratoon_thinking_blocks_total{signature="foreign"} 2.0' in page


def test_the_switch_works_at_run_time(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = say(f"<think>{REPLY}")
    assert http.get("/think").json() == {"think": True, "locked": False}
    assert http.get("/think?on=0").json() == {"think": True, "locked": False}
    assert kinds(http, ENABLED) == ["thinking", "text"]
    assert http.post("/think", json={"think": False}).json() == {"think": False, "locked": False}
    assert kinds(http, ENABLED) == ["text"]
    assert http.post("/think", json={"think": True}).json() == {"think": True, "locked": False}
    assert kinds(http, ENABLED) == ["thinking", "text"]


def test_no_request_opens_the_lock(
    http: httpx.Client, engine: ScriptedEngine, service: Service
) -> None:
    service.think.is_locked, service.think.is_on = True, False
    engine.script = say(f"<think>{REPLY}")
    locked = {"think": False, "locked": True}
    assert http.get("/think").json() == locked
    assert http.post("/think", json={"think": True}).json() == locked
    assert http.get("/think").json() == locked
    assert kinds(http, ENABLED) == ["text"]
    assert kinds(http, None) == ["text"]
    assert [request.label for request in engine.submitted] == ["locked", "req"]


def test_a_locked_switch_starts_off() -> None:
    assert not ThinkSwitch(is_on=True, is_locked=True).is_on


@pytest.mark.parametrize("content", [b"", b"{}", b'{"think": "yes"}', b"on", b"[" * 3000])
def test_a_wrong_switch_changes_nothing(http: httpx.Client, content: bytes) -> None:
    answer = http.post("/think", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert http.get("/think").json() == {"think": True, "locked": False}


def test_reasoning_stays_out_of_the_log(
    http: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.script = say("a secret plan</think>Yes.")
    with caplog.at_level(logging.DEBUG, "ratoon"):
        assert kinds(http, ENABLED) == ["thinking", "text"]
    assert "secret" not in caplog.text


def kinds(http: httpx.Client, thinking: dict[str, Any] | None) -> list[str]:
    """The types of a reply's blocks."""
    answer = http.post("/v1/messages", json=body(thinking))
    return [block["type"] for block in answer.json()["content"]]

"""Reasoning through the whole server; what the model would say is forced, the rest is real."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratoon.config import Settings
from ratoon.engine.request import Request
from tests.conftest import TEMPLATES
from tests.model.live import Live, live

pytestmark = pytest.mark.model

THINK = {"type": "adaptive"}
HEADER = "<|im_start|>assistant\n<think>\n"
CLOSED = f"{HEADER}\n</think>\n\n"


def settings(model: Path, *, think: bool = True) -> Settings:
    template = TEMPLATES / "chatml_think.jinja"
    return Settings(model=str(model), chat_template=template, n_ctx=2048, think=think)


@pytest.fixture(scope="module")
def server(cut4_path: Path) -> Iterator[Live]:
    with live(settings(cut4_path)) as running:
        yield running


@pytest.fixture(scope="module")
def locked(cut4_path: Path) -> Iterator[Live]:
    with live(settings(cut4_path, think=False)) as running:
        yield running


def ask(server: Live, reply: str, messages: list[Any], **fields: Any) -> tuple[Any, str]:
    """The answer to a request whose reply is given, and the prompt it was sampled after."""
    vocab = server.engine.model.vocab
    prompts: list[str] = []

    def forced(request: Request) -> list[int]:
        prompts.append(b"".join(map(vocab.piece, request.prompt)).decode())
        return [*vocab.tokenize(reply), vocab.specials["<|im_end|>"].id]

    server.engine.forced_tokens = forced
    body = {"model": "m", "max_tokens": 200, "messages": messages, **fields}
    answer = httpx.post(f"{server.url}/v1/messages", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json(), prompts[0]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_conversation_that_reasons(server: Live) -> None:
    reply = "Two and two.\n</think>\n\nFour."
    first, prompt = ask(server, reply, [user("2 + 2?")], thinking=THINK)
    assert prompt.endswith(HEADER)
    thought, text = first["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Two and two.")
    assert thought["signature"]
    assert text == {"type": "text", "text": "Four."}

    turns = [user("2 + 2?"), {"role": "assistant", "content": first["content"]}, user("sure?")]
    _, again = ask(server, "</think>Yes.", turns, thinking=THINK)
    assert again.endswith(HEADER)
    assert f"{HEADER}{reply}<|im_end|>" in again
    _, without = ask(server, "Yes.", turns)
    assert f"{HEADER}{reply}<|im_end|>" in without, "one request's wish costs no prefix"
    assert without.endswith(CLOSED)

    httpx.post(f"{server.url}/think", json={"think": False}).raise_for_status()
    _, switched = ask(server, "Yes.", turns, thinking=THINK)
    httpx.post(f"{server.url}/think", json={"think": True}).raise_for_status()
    assert "Two and two" not in switched
    assert f"{CLOSED}Four.<|im_end|>" in switched
    assert switched.endswith(CLOSED)


def test_calls_follow_reasoning(server: Live) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    tools = [{"name": "read", "description": "Read", "input_schema": schema}]
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    reply = f"I could call {call} now.</think>\n{call}"
    answer, _ = ask(server, reply, [user("go")], tools=tools, thinking=THINK)
    assert [block["type"] for block in answer["content"]] == ["thinking", "tool_use"]
    assert answer["content"][0]["thinking"] == f"I could call {call} now."
    assert answer["content"][1]["input"] == {"path": "a"}
    assert answer["stop_reason"] == "tool_use"


def test_the_lock_keeps_reasoning_out(locked: Live, caplog: pytest.LogCaptureFixture) -> None:
    thought = {"type": "thinking", "thinking": "Two and two.", "signature": "c2ln"}
    turns = [
        user("2 + 2?"),
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Four."}]},
        user("sure?"),
    ]
    assert httpx.post(f"{locked.url}/think", json={"think": True}).json()["locked"] is True
    with caplog.at_level(logging.INFO, "ratoon.engine"):
        answer, prompt = ask(locked, "<think>Hm.</think>Yes.", turns, thinking=THINK)
        locked.wait_until_idle()
    assert [block["type"] for block in answer["content"]] == ["text"]
    assert "Two and two" not in prompt
    assert f"{CLOSED}Four.<|im_end|>" in prompt
    assert prompt.endswith(CLOSED)
    assert any(record.message.startswith("locked ") for record in caplog.records)


def test_a_locked_history_extends_what_is_cached(locked: Live) -> None:
    first, _ = ask(locked, "Green.", [user("Which colour has the grass?")])
    turns = [user("Which colour has the grass?"), {"role": "assistant", "content": "Green."}]
    second, _ = ask(locked, "Blue.", [*turns, user("And the sky?")])
    used = first["usage"]
    n_first = used["input_tokens"] + used["cache_read_input_tokens"] + used["output_tokens"]
    assert second["usage"]["cache_read_input_tokens"] >= n_first - 1

"""Replies over real HTTP, as the official client and as raw bytes see them."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import pytest

from ratoon.api.service import Service
from ratoon.engine.events import Finished, FinishReason, Started, Token
from tests.server.scripted import ByteRenderer, ScriptedEngine, play, say, sse_events

BODY: dict[str, Any] = {
    "model": "claude-anything",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}
EMOJI = "Grüße 你好 👩‍👩‍👧‍👦 \u2028\x85 end"


def ask(client: anthropic.Anthropic, **more: Any) -> anthropic.types.Message:
    body: Any = BODY | more
    message: anthropic.types.Message = client.messages.create(**body)
    return message


def test_a_message(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    message = ask(client)
    assert [block.model_dump(include={"type", "text"}) for block in message.content] == [
        {"type": "text", "text": "Hello"}
    ]
    assert message.id.startswith("msg_")
    assert message.role == "assistant"
    assert message.model == "claude-anything"
    assert message.stop_reason == "end_turn"
    assert message.stop_sequence is None
    assert message.usage.input_tokens == len(engine.submitted[0].prompt)
    assert message.usage.output_tokens == 5
    assert message._request_id is not None
    assert message._request_id.startswith("req_")
    assert engine.cancelled == []


def test_a_stream(client: anthropic.Anthropic) -> None:
    body: Any = BODY
    with client.messages.stream(**body) as stream:
        parts = list(stream.text_stream)
        message = stream.get_final_message()
    assert "".join(parts) == "Hello"
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == 5


def test_the_async_client(url: str) -> None:
    async def both() -> tuple[str, str]:
        body: Any = BODY
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            whole = await client.messages.create(**body)
            async with client.messages.stream(**body) as stream:
                return whole.content[0].text, await stream.get_final_text()

    assert asyncio.run(both()) == ("Hello", "Hello")


def test_stream_records(http: httpx.Client) -> None:
    response = http.post("/v1/messages?beta=true", json=BODY | {"stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"].startswith("req_")
    events = sse_events(response.text)
    assert [kind for kind, _ in itertools.groupby(e["type"] for e in events)] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_streamed_and_whole_replies_agree(
    http: httpx.Client, client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = say(EMOJI, n_cached=7)
    body: Any = BODY
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message().to_dict()
    whole = http.post("/v1/messages", json=BODY).json()
    assert whole["content"] == [{"type": "text", "text": EMOJI}]
    assert whole["usage"]["cache_read_input_tokens"] == 7
    for name in ("content", "usage", "stop_reason", "model", "role"):
        expected = whole[name]
        got: Any = streamed[name]
        if name == "usage":
            got = {k: v for k, v in got.items() if k in expected}
        if name == "content":
            got = [{k: v for k, v in block.items() if k in ("type", "text")} for block in got]
        assert got == expected


def test_line_separators_do_not_break_the_stream(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script = say(EMOJI, size=100)
    response = http.post("/v1/messages", json=BODY | {"stream": True})
    assert len(response.text.splitlines()) == response.text.count("\n")
    assert EMOJI in [e.get("delta", {}).get("text") for e in sse_events(response.text)]  # type: ignore[attr-defined]


def test_surrogate_pairs_in_the_body(http: httpx.Client, engine: ScriptedEngine) -> None:
    raw = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert http.post("/v1/messages", content=raw).status_code == 200
    assert "😀" in bytes(engine.submitted[0].prompt).decode()


def test_half_a_surrogate_pair_is_refused(http: httpx.Client) -> None:
    raw = b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"\\ud83d"}]}'
    assert http.post("/v1/messages", content=raw).status_code == 400


@pytest.mark.parametrize(
    ("reason", "stop_reason"),
    [
        (FinishReason.STOP, "end_turn"),
        (FinishReason.LENGTH, "max_tokens"),
        (FinishReason.CONTEXT, "model_context_window_exceeded"),
    ],
)
def test_stop_reasons(
    client: anthropic.Anthropic, engine: ScriptedEngine, reason: FinishReason, stop_reason: str
) -> None:
    engine.script = play(Started(5, 0, "cold"), Token(0, b"x"), Finished(reason, 1))
    assert ask(client).stop_reason == stop_reason


def test_an_empty_reply(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script = say("")
    assert ask(client).content == []
    body: Any = BODY
    with client.messages.stream(**body) as stream:
        assert stream.get_final_message().content == []


def test_a_stop_sequence_ends_the_reply(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = say("one STOP two " * 50, wait_s=0.002)
    message = ask(client, stop_sequences=["STOP"])
    assert message.content[0].to_dict()["text"] == "one "
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "STOP")
    assert message.usage.output_tokens == len("one STOP")
    assert engine.cancelled == [message.id]


def test_max_tokens_is_clamped_to_the_window(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    n_prompt = client.messages.count_tokens(model="m", messages=BODY["messages"]).input_tokens
    engine.n_ctx = n_prompt + 3
    message = ask(client)
    assert engine.submitted[0].max_tokens == 3
    assert message.stop_reason == "model_context_window_exceeded"
    assert ask(client, max_tokens=3).stop_reason == "max_tokens"


def test_sampling(client: anthropic.Anthropic, engine: ScriptedEngine, service: Service) -> None:
    ask(client)
    assert engine.submitted[0].sampling == service.settings.sampling
    extra = {"temperature": 1, "top_p": 0.5, "top_k": 3}
    ask(client, extra_body=extra)
    sampling = engine.submitted[1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 0.5, 3)
    ask(client, extra_body={"temperature": 5e-324})
    assert engine.submitted[2].sampling.temperature == 0.0


def test_unknown_fields_and_betas_are_accepted(http: httpx.Client) -> None:
    body = BODY | {
        "context_management": {"edits": []},
        "output_config": {"effort": "high"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "metadata": {"user_id": "u"},
        "new_field": [1],
    }
    headers = {"anthropic-beta": "nobody-knows-2030-01-01", "anthropic-version": "2023-06-01"}
    assert http.post("/v1/messages?beta=true", json=body, headers=headers).status_code == 200


def test_cache_marks_decide_what_counts_as_written(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = say("x", n_cached=3)
    block = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    usage = ask(client, messages=[{"role": "user", "content": [block]}]).usage
    n_prompt = len(engine.submitted[0].prompt)
    assert usage.cache_read_input_tokens == 3
    assert usage.cache_creation_input_tokens == n_prompt // 2 - 3
    assert usage.input_tokens == n_prompt - n_prompt // 2


def test_eight_clients_at_once(url: str, engine: ScriptedEngine) -> None:
    def echo(request: Any) -> Any:
        tail = bytes(request.prompt)[-40:]
        return say(tail, wait_s=0.002)(request)

    engine.script = echo

    def one(n: int) -> str:
        messages: Any = [{"role": "user", "content": f"number {n}"}]
        with anthropic.Anthropic(base_url=url, api_key="any") as client:
            stream = client.messages.stream(model="m", max_tokens=99, messages=messages)
            with stream as events:
                return events.get_final_text()

    with ThreadPoolExecutor(8) as pool:
        for n, text in enumerate(pool.map(one, range(8))):
            assert f"number {n}" in text
    assert len(engine.submitted) == 8


LATE_RUN = [{"role": "user", "content": "Task"}, {"role": "system", "content": "Date"}]
SESSION = {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}


def test_a_conversation_keeps_its_form(
    http: httpx.Client, renderer: ByteRenderer, engine: ScriptedEngine
) -> None:
    def post(messages: list[dict[str, str]], headers: dict[str, str]) -> str:
        http.post("/v1/messages", json=BODY | {"messages": messages}, headers=headers)
        return bytes(engine.submitted[-1].prompt).decode()

    def is_hoisted(text: str) -> bool:
        return text.index("Date") < text.index("Task")

    assert is_hoisted(post(LATE_RUN, SESSION))
    post(LATE_RUN[:1], SESSION | {"x-claude-code-agent-id": "b"})
    assert not is_hoisted(post(LATE_RUN, SESSION | {"x-claude-code-agent-id": "b"}))
    assert is_hoisted(post(LATE_RUN, SESSION))


def test_without_a_session_the_longer_match_decides(
    http: httpx.Client, renderer: ByteRenderer, engine: ScriptedEngine
) -> None:
    body = BODY | {"messages": LATE_RUN}
    http.post("/v1/messages", json=body)
    hoisted = engine.submitted[-1].prompt
    http.post("/v1/messages", json=BODY | {"messages": LATE_RUN[:1]})
    engine.held.append(engine.submitted[-1].prompt)
    http.post("/v1/messages", json=body)
    assert engine.submitted[-1].prompt != hoisted
    engine.held.append(hoisted)
    http.post("/v1/messages", json=body)
    assert engine.submitted[-1].prompt == hoisted


def test_metrics_follow_the_requests(
    client: anthropic.Anthropic,
    http: httpx.Client,
    engine: ScriptedEngine,
    renderer: ByteRenderer,
) -> None:
    engine.script = say("Hello", n_cached=3)
    renderer.fired = {"drop_billing": 1}
    ask(client)
    n_prompt = len(engine.submitted[0].prompt)
    lines = http.get("/metrics").text.splitlines()
    assert {
        'ratoon_prompt_tokens_total{cost="reused",layer="host"} 3.0',
        f'ratoon_prompt_tokens_total{{cost="forwarded",layer="host"}} {n_prompt - 3}.0',
        "ratoon_output_tokens_total 5.0",
        'ratoon_requests_total{stop_reason="end_turn"} 1.0',
        'ratoon_normalisations_total{rule="drop_billing"} 1.0',
        "ratoon_ttft_seconds_count 1.0",
        "ratoon_itl_seconds_count 4.0",
        "ratoon_queue_seconds_count 1.0",
    } <= set(lines)

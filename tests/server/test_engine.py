"""The HTTP edge on the real engine and the real renderer, with the model that echoes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import pytest

from ratoon.api.app import create_app
from ratoon.api.service import ApiSettings, Service
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Renderer
from ratoon.chat.template import ChatTemplate
from ratoon.engine.dummy import DummyModel
from ratoon.engine.engine import Engine, EngineConfig
from tests.server.scripted import Switch, sse_events
from tests.server.test_hang_ups import open_request

TOOL = {"name": "ls", "description": "List.", "input_schema": {"type": "object"}}
SETTINGS = ApiSettings(ping_s=0.1, commit_s=0.2)


def running_engine(model: DummyModel, **config: Any) -> Engine:
    engine = Engine(model, EngineConfig(**config))
    engine.start()
    return engine


@pytest.fixture
def model() -> DummyModel:
    return DummyModel(n_ctx=4096, row_s=0.00002)


@pytest.fixture
def real(model: DummyModel, switch: Switch, server_url: str) -> Iterator[Engine]:
    """The engine behind the shared server."""
    engine = running_engine(model)
    assert model.chat_template is not None
    renderer = Renderer(ChatTemplate(model.chat_template, "", "<|im_end|>"), model.vocab, Rules())
    switch.app = create_app(Service(engine, renderer, settings=SETTINGS))
    yield engine
    engine.stop()


@pytest.fixture
def client(real: Engine, shared_client: anthropic.Anthropic) -> anthropic.Anthropic:
    return shared_client


@pytest.fixture
def http(real: Engine, shared_http: httpx.Client) -> httpx.Client:
    return shared_http


def ask(client: anthropic.Anthropic, text: str, **more: Any) -> anthropic.types.Message:
    body: Any = {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": text}]}
    message: anthropic.types.Message = client.messages.create(**body | more)
    return message


def prompt_of(usage: anthropic.types.Usage) -> int:
    created, read = usage.cache_creation_input_tokens, usage.cache_read_input_tokens
    return usage.input_tokens + (created or 0) + (read or 0)


def until(what: Any, limit_s: float = 30.0) -> None:
    began_s = time.monotonic()
    while not what():
        assert time.monotonic() - began_s < limit_s, "it did not happen"
        time.sleep(0.01)


def test_an_echo(client: anthropic.Anthropic) -> None:
    message = ask(client, "Grüße 😀\nyou")
    assert message.content[0].to_dict()["text"] == "Grüße 😀\nyou"
    assert message.stop_reason == "end_turn"
    count = client.messages.count_tokens(
        model="m", messages=[{"role": "user", "content": "Grüße 😀\nyou"}]
    )
    assert prompt_of(message.usage) == count.input_tokens


def test_the_same_prompt_is_read_from_the_cache(client: anthropic.Anthropic) -> None:
    text = "once upon a time " * 20
    first, second = ask(client, text, max_tokens=5), ask(client, text, max_tokens=5)
    assert first.stop_reason == "max_tokens"
    assert first.usage.cache_read_input_tokens == 0
    assert (second.usage.cache_read_input_tokens or 0) > 300
    assert prompt_of(second.usage) == prompt_of(first.usage)


def test_a_tool_call(client: anthropic.Anthropic) -> None:
    call = '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp", "n": 1}}\n</tool_call>'
    message = ask(client, f"Look.\n{call}", tools=[TOOL])
    kinds = [block.type for block in message.content]
    assert kinds == ["text", "tool_use"]
    tool = message.content[1].to_dict()
    assert (tool["name"], tool["input"]) == ("ls", {"path": "/tmp", "n": 1})
    assert str(tool["id"]).startswith("toolu_")
    assert message.stop_reason == "tool_use"


def test_without_tools_the_same_text_is_text(client: anthropic.Anthropic) -> None:
    text = '<tool_call>{"name": "ls", "arguments": {}}</tool_call>'
    message = ask(client, text)
    assert message.content[0].to_dict()["text"] == text
    assert message.stop_reason == "end_turn"


def test_a_stop_sequence(client: anthropic.Anthropic, real: Engine) -> None:
    message = ask(client, "one two STOP " + "three " * 50, stop_sequences=["STOP", "never"])
    assert message.content[0].to_dict()["text"] == "one two "
    assert message.stop_sequence == "STOP"
    assert message.usage.output_tokens == len("one two STOP")
    until(lambda: not real.inspect()["running"])


def test_a_prompt_over_the_window(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 4095 m"):
        ask(client, "x" * 5000)


def test_the_window_ends_the_reply(client: anthropic.Anthropic) -> None:
    message = ask(client, "x" * 2500, max_tokens=100_000)
    assert message.stop_reason == "model_context_window_exceeded"
    assert prompt_of(message.usage) + message.usage.output_tokens == 4096


def test_eight_clients_share_a_prefix(client: anthropic.Anthropic, real: Engine) -> None:
    system = "the same rules " * 40

    def one(n: int) -> anthropic.types.Message:
        body: Any = {"model": "m", "max_tokens": 99, "system": system}
        body["messages"] = [{"role": "user", "content": f"I am number {n}"}]
        with client.messages.stream(**body) as stream:
            return stream.get_final_message()

    ask(client, "warm", system=system)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(one, range(8)))
    for n, message in enumerate(replies):
        assert message.content[0].to_dict()["text"] == f"I am number {n}"
        assert (message.usage.cache_read_input_tokens or 0) >= len(system)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_hang_up_frees_the_engine(
    server_url: str, model: DummyModel, real: Engine, is_stream: bool
) -> None:
    model._row_s = 0.005
    body: Any = {"model": "m", "max_tokens": 3000, "stream": is_stream}
    body["messages"] = [{"role": "user", "content": "x" * 300}]
    connection = open_request(server_url, json.dumps(body).encode())
    until(lambda: real.inspect()["running"])
    connection.close()
    until(lambda: not real.inspect()["running"])


def test_a_slow_prefill_is_covered_by_pings(http: httpx.Client, model: DummyModel) -> None:
    model._row_s = 0.001
    body: Any = {"model": "m", "max_tokens": 2, "stream": True}
    body["messages"] = [{"role": "user", "content": "x" * 500}]
    kinds = [e["type"] for e in sse_events(http.post("/v1/messages", json=body).text)]
    assert kinds[0] == "message_start"
    assert kinds[: kinds.index("content_block_start")].count("ping") >= 3


def test_a_full_queue(
    shared_client: anthropic.Anthropic, switch: Switch, server_url: str, model: DummyModel
) -> None:
    engine = Engine(model, EngineConfig(max_queue=0))
    assert model.chat_template is not None
    renderer = Renderer(ChatTemplate(model.chat_template, "", "<|im_end|>"), model.vocab, Rules())
    switch.app = create_app(Service(engine, renderer))
    with pytest.raises(anthropic.InternalServerError) as caught:
        ask(shared_client, "x")
    assert caught.value.type == "overloaded_error"


def test_metrics_hold_the_engines_figures(http: httpx.Client, client: anthropic.Anthropic) -> None:
    ask(client, "hello")
    text = http.get("/metrics").text
    assert 'ratoon_active_requests{state="running"} 0.0' in text
    assert 'ratoon_tier_bytes{tier="host"}' in text
    assert 'ratoon_tier_tokens{tier="device"}' in text

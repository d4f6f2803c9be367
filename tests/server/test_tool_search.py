"""Searches that the server runs in the middle of a reply, as the official client sees them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message
from anthropic.types.beta import BetaMessage

from ratoon.api.search import MAX_SEARCHES
from ratoon.bench.suite import TOOL_TEMPLATE
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Renderer
from ratoon.chat.template import ChatTemplate
from ratoon.engine.dummy import ByteVocab
from ratoon.engine.events import Finished, FinishReason, Started, Token
from ratoon.engine.request import Request
from tests.server.scripted import ScriptedEngine, Step, endless, say, sse_events

TEMPLATE = TOOL_TEMPLATE.read_text(encoding="utf-8")
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
REGEX = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}


def tool(name: str, description: str, **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"name": name, "description": description, "input_schema": schema, **fields}


TOOLS = [
    SEARCH,
    REGEX,
    tool("clock", "Tells the time."),
    tool("weather", "Tells the weather.", defer_loading=True),
    tool("mail", "Sends a letter.", defer_loading=True),
]
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 500,
    "messages": [{"role": "user", "content": "How is it outside?"}],
    "tools": TOOLS,
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


LOOK = "Let me look." + call("tool_search_tool_bm25", query="the weather")
ASK = "Found it." + call("weather", city="Riga")


class Rounds:
    """A script for each request in turn; what is cached is what all earlier prompts held."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.seen: list[list[int]] = []

    def __call__(self, request: Request) -> Iterator[Step]:
        n_cached = max((_n_common(request.prompt, old) for old in self.seen), default=0)
        text = self.texts[min(len(self.seen), len(self.texts) - 1)]
        self.seen.append(request.prompt)
        return say(text, n_cached=n_cached, size=7)(request)


def _n_common(a: list[int], b: list[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


@pytest.fixture
def renderer() -> Renderer:
    vocab = ByteVocab()
    return Renderer(ChatTemplate(TEMPLATE, "", "<|im_end|>"), vocab, Rules())


@pytest.fixture
def rounds(engine: ScriptedEngine) -> Rounds:
    engine.script = script = Rounds(LOOK, ASK)
    return script


def told(engine: ScriptedEngine, n: int) -> str:
    vocab = ByteVocab()
    return b"".join(map(vocab.piece, engine.submitted[n].prompt)).decode()


def ask(client: anthropic.Anthropic, **more: Any) -> Message:
    body: Any = BODY | more
    message: Message = client.messages.create(**body)
    return message


def shapes(message: Message | BetaMessage) -> list[str]:
    return [block.type for block in message.content]


def test_a_found_tool_is_called_in_the_same_reply(
    client: anthropic.Anthropic, engine: ScriptedEngine, rounds: Rounds
) -> None:
    message = ask(client)
    assert shapes(message) == [
        "text",
        "server_tool_use",
        "tool_search_tool_result",
        "text",
        "tool_use",
    ]
    Message.model_validate(message.to_dict())
    _, search, result, _, use = message.content
    assert search.type == "server_tool_use"
    assert search.id.startswith("srvtoolu_")
    assert search.input == {"query": "the weather"}
    assert result.type == "tool_search_tool_result"
    assert result.tool_use_id == search.id
    assert result.content.type == "tool_search_tool_search_result"
    assert [found.tool_name for found in result.content.tool_references] == ["weather"]
    assert use.type == "tool_use"
    assert (use.name, use.input) == ("weather", {"city": "Riga"})
    assert message.stop_reason == "tool_use"
    assert "Tells the weather." not in told(engine, 0)
    assert told(engine, 1).count("Tells the weather.") == 1
    assert len(engine.submitted) == 2
    assert len({request.id for request in engine.submitted}) == 2


def test_usage_adds_up(client: anthropic.Anthropic, engine: ScriptedEngine, rounds: Rounds) -> None:
    usage = ask(client).usage
    prompts = [len(request.prompt) for request in engine.submitted]
    n_cached = _n_common(*rounds.seen)
    assert usage.cache_read_input_tokens == n_cached > 0
    assert usage.input_tokens == sum(prompts) - n_cached
    # a round ends with the token that ends its search
    assert usage.output_tokens == -(-len(LOOK) // 7) + -(-len(ASK) // 7)
    assert usage.server_tool_use is not None
    assert usage.server_tool_use.to_dict()["tool_search_requests"] == 1


def test_streamed_and_whole_replies_agree(
    client: anthropic.Anthropic, http: httpx.Client, engine: ScriptedEngine, rounds: Rounds
) -> None:
    body: Any = BODY
    with client.messages.stream(**body) as stream:
        streamed: dict[str, Any] = stream.get_final_message().to_dict()
    engine.script = Rounds(LOOK, ASK)
    whole: dict[str, Any] = http.post("/v1/messages", json=BODY).json()
    for message in (streamed, whole):
        Message.model_validate(message)
        for block in message["content"]:
            for key in ("id", "tool_use_id"):
                block.pop(key, None)
    assert streamed["content"] == whole["content"]
    assert streamed["stop_reason"] == whole["stop_reason"]
    shared = set(streamed["usage"]) & set(whole["usage"])
    assert {"input_tokens", "cache_read_input_tokens", "output_tokens"} <= shared
    for key in ("input_tokens", "cache_read_input_tokens", "output_tokens"):
        assert streamed["usage"][key] == whole["usage"][key]


def test_the_records_of_a_stream(http: httpx.Client, rounds: Rounds) -> None:
    events = sse_events(http.post("/v1/messages", json=BODY | {"stream": True}).text)
    kinds = [event["type"] for event in events]
    for once in ("message_start", "message_delta", "message_stop"):
        assert kinds.count(once) == 1
    assert [e["index"] for e in events if e["type"] == "content_block_start"] == [0, 1, 2, 3, 4]
    is_open = None
    for event in events:
        if event["type"] == "content_block_start":
            assert is_open is None
            is_open = event["index"]
        elif event["type"] in ("content_block_delta", "content_block_stop"):
            assert event["index"] == is_open
            is_open = None if event["type"] == "content_block_stop" else is_open


def test_the_echo_of_a_reply_extends_its_prompt(
    client: anthropic.Anthropic, engine: ScriptedEngine, rounds: Rounds
) -> None:
    message = ask(client)
    use = message.content[-1]
    assert use.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}
    history = [
        *BODY["messages"],
        message.to_param(),
        {"role": "user", "content": [result]},
    ]
    engine.script = say("Fine.")
    ask(client, messages=history)
    midway, last = engine.submitted[1].prompt, engine.submitted[2].prompt
    assert last[: len(midway)] == midway
    assert told(engine, 2).count("Tells the weather.") == 1


def test_the_beta_client_and_async(url: str, engine: ScriptedEngine) -> None:
    async def both() -> tuple[BetaMessage, BetaMessage]:
        body: Any = BODY
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            engine.script = Rounds(LOOK, ASK)
            whole = await client.beta.messages.create(**body)
            engine.script = Rounds(LOOK, ASK)
            async with client.beta.messages.stream(**body) as stream:
                return whole, await stream.get_final_message()

    for message in asyncio.run(both()):
        BetaMessage.model_validate(message.to_dict())
        assert shapes(message)[1:3] == ["server_tool_use", "tool_search_tool_result"]
        assert message.usage.iterations is not None
        assert [each.type for each in message.usage.iterations] == ["message", "message"]


def test_a_pattern_that_is_none_is_told_to_the_model(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = Rounds(call("tool_search_tool_regex", pattern="("), "Well.")
    message = ask(client)
    result = message.content[1]
    assert result.type == "tool_search_tool_result"
    assert result.content.type == "tool_search_tool_result_error"
    assert result.content.error_code == "invalid_tool_input"
    assert shapes(message)[-1] == "text"
    assert "Error: pattern" in told(engine, 1)


def test_searches_without_end_pause(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.script = Rounds(call("tool_search_tool_bm25", query="weather"))
    message = ask(client, max_tokens=10_000)
    assert message.stop_reason == "pause_turn"
    assert shapes(message) == ["server_tool_use", "tool_search_tool_result"] * MAX_SEARCHES
    assert len(engine.submitted) == MAX_SEARCHES
    engine.script = say("On.")
    more = ask(client, messages=[*BODY["messages"], message.to_param()])
    assert more.stop_reason == "end_turn"
    assert told(engine, -1).endswith("<|im_start|>assistant\n")


def test_the_limit_holds_for_all_rounds(
    client: anthropic.Anthropic, engine: ScriptedEngine, rounds: Rounds
) -> None:
    n_first = -(-len(LOOK) // 7)
    message = ask(client, max_tokens=n_first + 2)
    assert engine.submitted[1].max_tokens == 2
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == n_first + 2
    engine.script = Rounds(LOOK, ASK)
    message = ask(client, max_tokens=n_first)
    assert message.stop_reason == "max_tokens"
    assert shapes(message) == ["text", "server_tool_use"]


def test_the_window_is_full_between_two_rounds(
    client: anthropic.Anthropic, engine: ScriptedEngine, rounds: Rounds
) -> None:
    count: Any = {key: BODY[key] for key in ("model", "messages", "tools")}
    n_prompt = client.messages.count_tokens(**count).input_tokens
    engine.n_ctx = n_prompt + len(LOOK)
    message = ask(client)
    assert message.stop_reason == "model_context_window_exceeded"
    assert shapes(message)[-1] == "tool_search_tool_result"


def test_a_round_stops_as_soon_as_its_search_is_whole(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    def rambling(request: Request) -> Iterator[Step]:
        if len(engine.submitted) > 1:
            yield from say("Done.")(request)
            return
        yield Started(len(request.prompt), 0, "cold")
        yield Token(0, LOOK.encode())
        while True:
            yield 0.01
            yield Token(0, b"x")

    engine.script = rambling
    message = ask(client)
    assert shapes(message)[-1] == "text"
    assert engine.cancelled == [message.id]


def test_an_error_in_a_later_round(http: httpx.Client, engine: ScriptedEngine) -> None:
    def script(request: Request) -> Iterator[Step]:
        if len(engine.submitted) > 1:
            yield Finished(FinishReason.CANCELLED, 0)
        else:
            yield from say(LOOK)(request)

    engine.script = script
    assert http.post("/v1/messages", json=BODY).status_code == 500
    engine.submitted.clear()
    streamed = http.post("/v1/messages", json=BODY | {"stream": True})
    assert sse_events(streamed.text)[-1]["type"] == "error"


def test_a_client_that_leaves_stops_a_later_round(url: str, engine: ScriptedEngine) -> None:
    def script(request: Request) -> Iterator[Step]:
        return say(LOOK)(request) if len(engine.submitted) == 1 else endless(request)

    engine.script = script
    body = BODY | {"stream": True, "max_tokens": 90_000}
    with (
        httpx.Client(base_url=url, timeout=60) as http,
        http.stream("POST", "/v1/messages", json=body) as response,
    ):
        for line in response.iter_lines():
            if '"text":"x' in line:
                break
    engine.wait_for(lambda it: it.submitted[1].id in it.cancelled)


def test_a_reply_that_only_calls_client_tools_is_one_round(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = say(call("clock", city="Riga"))
    message = ask(client)
    assert shapes(message) == ["tool_use"]
    assert message.usage.server_tool_use is None
    assert len(engine.submitted) == 1

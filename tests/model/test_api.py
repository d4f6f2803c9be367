"""What the API promises of the cache, on a real model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from ratoon.bench import sessions
from ratoon.config import Settings
from ratoon.engine.request import Request
from tests.model.live import Live, live

pytestmark = pytest.mark.model


@pytest.fixture
def server(cut4_path: Path) -> Iterator[Live]:
    with live(Settings(model=str(cut4_path), n_ctx=4096)) as running:
        yield running


@pytest.fixture
def client(server: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="any", max_retries=0, timeout=60
    ) as opened:
        yield opened


def n_prompt(message: Message) -> int:
    usage = message.usage
    return (
        usage.input_tokens
        + (usage.cache_creation_input_tokens or 0)
        + (usage.cache_read_input_tokens or 0)
    )


def test_a_warmed_prompt_is_served_from_the_cache(client: anthropic.Anthropic) -> None:
    text = sessions.prose(1, "warm", 300)
    body: Any = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    warm = client.messages.create(**body | {"max_tokens": 0})
    assert (warm.content, warm.stop_reason) == ([], "max_tokens")
    assert warm.usage.output_tokens == 0
    assert warm.usage.cache_read_input_tokens == 0
    after = client.messages.create(**body)
    assert n_prompt(after) == n_prompt(warm)
    assert after.usage.cache_read_input_tokens == n_prompt(warm) - 1
    assert after.usage.output_tokens > 0


def test_a_search_and_its_echo_extend_the_prompt(server: Live, client: anthropic.Anthropic) -> None:
    """The reply's second round, and the next request, forward only what is new, though the
    template would write the call in another way."""
    call = (
        '<tool_call>{"arguments":{"query":"weather"} ,"name":"tool_search_tool_bm25"}</tool_call>'
    )
    sampled = server.engine.model.vocab.tokenize(call)

    def forced(request: Request) -> Sequence[int]:
        return () if "." in request.id else sampled

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools = [
        {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
        {"name": "weather", "defer_loading": True, "input_schema": schema},
    ]
    text = sessions.prose(2, "search", 300)
    user = {"role": "user", "content": text}
    body: Any = {"model": "m", "max_tokens": 60, "messages": [user], "tools": tools}
    server.engine.forced_tokens = forced
    message = client.messages.create(**body)
    server.engine.forced_tokens = None
    assert [block.type for block in message.content[:2]] == [
        "server_tool_use",
        "tool_search_tool_result",
    ]
    first, second = message.usage.to_dict()["iterations"]
    n_first = first["input_tokens"] + first["cache_read_input_tokens"]
    assert first["output_tokens"] == len(sampled)
    # the last token was sampled, but never computed
    assert second["cache_read_input_tokens"] >= n_first + len(sampled) - 1
    n_second = second["input_tokens"] + second["cache_read_input_tokens"]
    more = [user, message.to_param(), {"role": "user", "content": "Go on."}]
    after = client.messages.create(**body | {"messages": more, "max_tokens": 1})
    assert (after.usage.cache_read_input_tokens or 0) >= n_second

"""The rest of the API's surface: fields, betas and errors, through the official client."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message
from anthropic.types.beta import BetaMessage, BetaMessageTokensCount

from ratoon.api.app import create_app
from ratoon.api.service import Service
from ratoon.bench.suite import TOOL_TEMPLATE
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Renderer
from ratoon.chat.template import ChatTemplate
from ratoon.engine.dummy import ByteVocab, DummyModel
from ratoon.engine.engine import Engine, EngineConfig
from tests.server.scripted import ScriptedEngine, Switch, sse_events

TEMPLATE = TOOL_TEMPLATE.read_text(encoding="utf-8")
USER = {"role": "user", "content": "Hi"}
BODY: dict[str, Any] = {"model": "m", "max_tokens": 2000, "messages": [USER]}
TOOL = {"name": "read", "input_schema": {"type": "object"}}
ADAPTIVE = {"type": "clear_thinking_20251015", "keep": "all"}


@pytest.fixture
def renderer() -> Renderer:
    return Renderer(ChatTemplate(TEMPLATE, "", "<|im_end|>"), ByteVocab(), Rules())


def beta(client: anthropic.Anthropic, **more: Any) -> BetaMessage:
    body: Any = BODY | more
    message: BetaMessage = client.beta.messages.create(**body)
    BetaMessage.model_validate(message.to_dict())
    return message


def uses(n: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [USER]
    for i in range(n):
        use = {"type": "tool_use", "id": f"t{i}", "name": "read", "input": {"path": f"p{i}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{i}", "content": "r" * 200}
        messages.append({"role": "assistant", "content": [use]})
        messages.append({"role": "user", "content": [result]})
    return messages


def clearing(trigger: int) -> Any:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": trigger},
        "keep": {"type": "tool_uses", "value": 1},
    }
    return {"edits": [edit]}


# --- messages and usage ----------------------------------------------------------------------


def test_a_message_has_every_field_of_its_type(http: httpx.Client) -> None:
    message = http.post("/v1/messages", json=BODY).json()
    Message.model_validate(message)
    BetaMessage.model_validate(message)
    for name in ("stop_sequence", "stop_details", "container", "context_management"):
        assert message[name] is None
    assert message["diagnostics"] is None
    usage = message["usage"]
    assert usage["service_tier"] == "standard"
    assert usage["server_tool_use"] is None
    created = usage["cache_creation"]
    assert sum(created.values()) == usage["cache_creation_input_tokens"]


def test_fields_that_change_nothing_here(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    beta(client)
    beta(
        client,
        metadata={"user_id": "u"},
        service_tier="auto",
        inference_geo="eu",
        speed="standard",
        mcp_servers=[],
        extra_body={"container": None, "thread": {"type": "create"}, "unheard_of": [1]},
        betas=["interleaved-thinking-2025-05-14", "unheard-of-2031-01-01"],
    )
    first, second = engine.submitted
    assert first.prompt == second.prompt


# --- max_tokens 0 ----------------------------------------------------------------------------


@pytest.fixture
def live(switch: Switch, url: str, renderer: Renderer) -> Any:
    """A real engine with a model that repeats what it is told."""
    engine = Engine(DummyModel(n_ctx=8192), EngineConfig())
    switch.app = create_app(Service(engine, renderer))
    engine.start()
    yield url
    engine.stop()


def test_a_prompt_is_computed_without_a_reply(live: str, client: anthropic.Anthropic) -> None:
    body: Any = BODY | {"max_tokens": 0}
    with client.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    whole = client.messages.create(**body)
    for message in (streamed, whole):
        Message.model_validate(message.to_dict())
        assert message.content == []
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == 0
    n_prompt = streamed.usage.input_tokens
    assert streamed.usage.cache_read_input_tokens == 0
    assert whole.usage.cache_read_input_tokens == n_prompt - 1
    after = client.messages.create(**BODY)
    assert after.usage.cache_read_input_tokens == n_prompt - 1
    assert after.content[0].to_dict()["text"] == "Hi"


# --- diagnostics -----------------------------------------------------------------------------


def diagnostics(previous: str | None) -> dict[str, Any]:
    return {"diagnostics": {"previous_message_id": previous}}


def test_diagnostics(client: anthropic.Anthropic) -> None:
    first = beta(client, system="s" * 200, **diagnostics(None))
    assert first.diagnostics is None
    reply = {"role": "assistant", "content": "Hello"}
    more = [USER, reply, USER]
    same = beta(client, system="s" * 200, messages=more, **diagnostics(first.id))
    assert same.diagnostics is None
    other = beta(client, system="s" * 100 + "t" * 100, **diagnostics(first.id))
    assert other.diagnostics is not None
    reason = other.diagnostics.cache_miss_reason
    assert reason is not None
    assert reason.type == "system_changed"
    assert 0 < reason.cache_missed_input_tokens < 250
    lost = beta(client, **diagnostics("msg_unknown"))
    assert lost.diagnostics is not None
    assert lost.diagnostics.cache_miss_reason is not None
    assert lost.diagnostics.cache_miss_reason.type == "previous_message_not_found"


def test_diagnostics_of_a_stream(client: anthropic.Anthropic) -> None:
    first = beta(client)
    body: Any = BODY | diagnostics(first.id) | {"messages": [{"role": "user", "content": "Yo"}]}
    with client.beta.messages.stream(**body) as stream:
        message = stream.get_final_message()
    assert message.diagnostics is not None
    assert message.diagnostics.cache_miss_reason is not None
    assert message.diagnostics.cache_miss_reason.type == "messages_changed"


# --- context edits ---------------------------------------------------------------------------


def test_edits_that_change_nothing(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    """A coding agent sends this with every request."""
    beta(client)
    message = beta(client, context_management={"edits": [ADAPTIVE]})
    assert message.context_management is not None
    assert message.context_management.applied_edits == []
    assert engine.submitted[0].prompt == engine.submitted[1].prompt


def test_applied_edits_are_told(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    body: Any = BODY | {"messages": uses(4), "context_management": clearing(3)}
    whole = beta(client, **body)
    with client.beta.messages.stream(**body) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.context_management is not None
        (done,) = message.context_management.applied_edits
        assert done.type == "clear_tool_uses_20250919"
        assert done.cleared_tool_uses == 3
        assert done.cleared_input_tokens > 0
    assert bytes(t for t in engine.submitted[0].prompt if t < 256).count(b"r" * 200) == 1


@pytest.mark.parametrize("trigger", [3, 4])
def test_counting_tells_the_original_count(client: anthropic.Anthropic, trigger: int) -> None:
    asked: Any = {"model": "m", "messages": uses(4)}
    plain = client.messages.count_tokens(**asked).input_tokens
    counted = client.beta.messages.count_tokens(**asked, context_management=clearing(trigger))
    BetaMessageTokensCount.model_validate(counted.to_dict())
    assert counted.context_management is not None
    assert counted.context_management.original_input_tokens == plain
    assert (counted.input_tokens < plain) == (trigger == 3)


# --- tools -----------------------------------------------------------------------------------


def test_an_unresolved_reference(client: anthropic.Anthropic) -> None:
    messages = uses(1)
    messages[2]["content"][0]["content"] = [{"type": "tool_reference", "tool_name": "gone"}]
    with pytest.raises(anthropic.BadRequestError) as caught:
        beta(client, messages=messages, tools=[TOOL])
    assert caught.value.error_code == "tool_reference_unresolved"
    assert caught.value.api_message == "Tool reference 'gone' not found in available tools"
    with pytest.raises(anthropic.BadRequestError):
        beta(client, messages=messages, tools=[TOOL], stream=True)


def test_a_thread_is_never_continued(client: anthropic.Anthropic) -> None:
    thread: Any = {"type": "continue", "previous_message_id": "msg_1"}
    with pytest.raises(anthropic.BadRequestError) as caught:
        beta(client, thread=thread)
    assert caught.value.error_code == "thread_unsupported_request"


def test_added_tools(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    tool = {"type": "tool_definition", "definition": TOOL | {"description": "Reads."}}
    system = {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}
    beta(client, messages=[USER, system])
    assert b"Reads." in bytes(t for t in engine.submitted[0].prompt if t < 256)


# --- what is refused -------------------------------------------------------------------------


THINKING = {"type": "enabled", "budget_tokens": 1024}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
    ({"container": "c_1"}, "container: "),
    ({"mcp_servers": [{"type": "url", "url": "x", "name": "y"}]}, "mcp_servers: "),
    ({"compaction": {"type": "summarize"}}, "compaction: "),
    ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread: "),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edit"),
    (
        {"context_management": {"edits": [{"type": "clear_all"}]}},
        "context_management.edits.0: Input tag 'clear_all' found using 'type' does not match",
    ),
    ({"tools": [TOOL, TOOL]}, "tools: Tool names must be unique."),
    (
        {"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]},
        "tools.1: tools of type 'web_search_20250305'",
    ),
    ({"tools": [{"type": "code_execution_20250825", "name": "c"}]}, "tools.0: tools of type"),
    ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}]}, "tools.0: tools of type 'mcp_"),
    ({"tools": [{"type": "browser_toolset_20260801"}]}, "tools.0: tools of type 'browser_"),
    ({"tools": [{"type": "custom"}]}, "tools.0.name: Field required"),
    (
        {"thinking": {"type": "enabled"}},
        "thinking.enabled.budget_tokens: Field required",
    ),
    (
        {"thinking": THINKING | {"budget_tokens": 1023}},
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        {"thinking": THINKING | {"budget_tokens": 0}},
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        {"thinking": THINKING, "max_tokens": 1024},
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages.0.content.0: image blocks are not supported by this model",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]},
        "messages.0.content.0: Input tag 'container_upload' found using 'type' does not match",
    ),
    (
        {
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{"}],
            "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
        },
        "messages: a final assistant text can't be continued",
    ),
    (
        {
            "context_management": {
                "edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns"}}]
            }
        },
        "context_management.edits.0.clear_thinking_20251015.keep.",
    ),
    (
        {"messages": [*uses(1)[:1], *uses(1)[2:]]},
        "messages.1.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t0. "
        "Each `tool_result` block must have a corresponding `tool_use` block in the previous",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused_is_named(http: httpx.Client, change: dict[str, Any], message: str) -> None:
    response = http.post("/v1/messages", json=BODY | change)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "change",
    [
        {"thinking": THINKING, "max_tokens": 1025},
        {"thinking": THINKING, "max_tokens": 0},
        {"thinking": {"type": "adaptive", "display": "updates"}},
        {"thinking": {"type": "between_tools"}},
        {"thinking": {"type": "disabled"}},
        {"messages": [{"role": "ctx", "content": "a"}, {"role": "msg", "content": "b"}]},
    ],
)
def test_what_is_accepted(http: httpx.Client, change: dict[str, Any]) -> None:
    assert http.post("/v1/messages", json=BODY | change).status_code == 200


def test_counting_ignores_what_only_a_reply_needs(http: httpx.Client) -> None:
    body = {"model": "m", "messages": [USER], "compaction": {"type": "summarize"}}
    assert http.post("/v1/messages/count_tokens", json=body).status_code == 200


def test_the_async_beta_client(url: str) -> None:
    async def run() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
            body: Any = BODY | {"context_management": {"edits": [ADAPTIVE]}}
            async with client.beta.messages.stream(**body) as stream:
                message = await stream.get_final_message()
            counted = await client.beta.messages.count_tokens(model="m", messages=BODY["messages"])
            return [message.content[0].type, str(counted.input_tokens > 0)]

    assert asyncio.run(run()) == ["text", "True"]


def test_edits_in_the_last_record(http: httpx.Client) -> None:
    body = BODY | {"stream": True, "context_management": {"edits": [ADAPTIVE]}}
    events = sse_events(http.post("/v1/messages", json=body).text)
    assert events[-2]["context_management"] == {"applied_edits": []}
    plain = sse_events(http.post("/v1/messages", json=BODY | {"stream": True}).text)
    assert "context_management" not in plain[-2]

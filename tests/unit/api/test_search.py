"""Rounds of a reply become one message: pure, without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from ratoon import wire
from ratoon.api.search import Splice, continued, search_tools
from ratoon.api.stream import MessageFold, ReplyHead, ReplyStream, WireEvent
from ratoon.chat.parser import ReplyParser
from ratoon.engine.events import Event, Finished, FinishReason, Started, Token

HEAD = ReplyHead("msg_1", "m")
SEARCH = '<tool_call>{"name": "lookup", "arguments": {"query": "q"}}</tool_call>'
CALL = '<tool_call>{"name": "read", "arguments": {"path": "p"}}</tool_call>'
TOOLS: Any = {"lookup": {}, "read": {}}
RESULT = {
    "type": "tool_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "tool_search_tool_search_result", "tool_references": []},
}


def batches(
    *pieces: str, reason: FinishReason = FinishReason.STOP, n_cached: int = 4
) -> list[list[WireEvent]]:
    """What one round says: a token for each piece."""
    ids = iter(range(1, 99))
    parser = ReplyParser((), True, lambda: f"toolu_{next(ids)}", tools=TOOLS)
    stream = ReplyStream(HEAD, parser)
    tokens = [Token(0, piece.encode()) for piece in pieces]
    events: list[Event] = [Started(10, n_cached, "host"), *tokens, Finished(reason, len(pieces))]
    return [stream.feed(event) for event in events]


def splice() -> Splice:
    return Splice({"lookup": "bm25"}, HEAD)


def feed(made: Splice, parts: list[list[WireEvent]]) -> list[WireEvent]:
    return [event for part in parts for event in made.feed(part)]


def message(events: list[WireEvent]) -> dict[str, Any]:
    fold = MessageFold()
    for event in events:
        fold.feed(event)
    return fold.message


def kinds(events: list[WireEvent]) -> list[str]:
    return [event["type"] for event in events if event["type"] != "ping"]


def test_a_reply_without_a_search_passes_unchanged() -> None:
    made, parts = splice(), batches("Hi", " ", CALL)
    plain = [event for part in batches("Hi", " ", CALL) for event in part]
    assert feed(made, parts) == plain
    assert made.close_round(3) is None
    assert made.end("end_turn") == []


def test_two_rounds_are_one_message() -> None:
    made = splice()
    events = feed(made, batches("Hm.", SEARCH))
    assert made.is_round_over
    call = made.close_round(2)
    assert call is not None
    assert call == {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "lookup",
        "input": {"query": "q"},
    }
    events += made.answer(RESULT)
    events += feed(made, batches("So.", CALL, n_cached=9))
    assert made.close_round(2) is None
    assert kinds(events).count("message_start") == kinds(events).count("message_stop") == 1
    starts = [e["index"] for e in events if e["type"] == "content_block_start"]
    assert starts == [0, 1, 2, 3, 4]
    whole = message(events)
    assert [block["type"] for block in whole["content"]] == [
        "text",
        "server_tool_use",
        "tool_search_tool_result",
        "text",
        "tool_use",
    ]
    assert whole["content"][2] == RESULT
    assert whole["stop_reason"] == "tool_use"
    usage = whole["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (7, 13)
    assert usage["output_tokens"] == made.n_output == 4
    assert usage["server_tool_use"]["tool_search_requests"] == 1
    assert [each["cache_read_input_tokens"] for each in usage["iterations"]] == [4, 9]


def test_what_follows_a_search_in_its_round_is_dropped() -> None:
    made = splice()
    events = feed(made, batches(SEARCH, "And", CALL))
    assert kinds(events)[-1] == "content_block_stop"
    assert len(made.content) == 1


def test_a_search_behind_a_call_of_the_client_is_not_run() -> None:
    made = splice()
    events = feed(made, batches(CALL, SEARCH))
    assert made.is_round_over
    assert made.close_round(2) is None
    events += made.end("tool_use")
    whole = message(events)
    assert [block["name"] for block in whole["content"]] == ["read"]
    assert whole["stop_reason"] == "tool_use"
    assert whole["usage"]["output_tokens"] == 2
    assert whole["usage"]["server_tool_use"] is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (FinishReason.LENGTH, "max_tokens"),
        (FinishReason.CONTEXT, "model_context_window_exceeded"),
    ],
)
def test_a_search_that_was_cut_off_is_not_run(reason: FinishReason, expected: str) -> None:
    made = splice()
    events = feed(made, batches(SEARCH[:60], reason=reason))
    assert made.close_round(1) is None
    assert message(events)["stop_reason"] == expected
    assert message(events)["content"][0]["type"] == "server_tool_use"


def test_the_end_between_two_rounds() -> None:
    made = splice()
    events = feed(made, batches(SEARCH))
    made.close_round(1)
    events += made.answer(RESULT) + made.end("pause_turn")
    whole = message(events)
    assert whole["stop_reason"] == "pause_turn"
    assert whole["usage"]["output_tokens"] == 1
    assert kinds(events)[-2:] == ["message_delta", "message_stop"]


def test_the_end_tells_of_context_edits() -> None:
    made = Splice({"lookup": "bm25"}, ReplyHead("msg_1", "m", edits=[]))
    feed(made, batches(SEARCH))
    made.close_round(1)
    assert made.end("pause_turn")[0]["context_management"] == {"applied_edits": []}


def asked(*messages: dict[str, Any], **fields: Any) -> wire.MessagesRequest:
    body = {"model": "m", "max_tokens": 9, "messages": messages, **fields}
    return wire.MessagesRequest.model_validate(body)


USER = {"role": "user", "content": "x"}


def test_the_next_round_is_asked_for_the_whole_reply() -> None:
    said: list[dict[str, Any]] = [{"type": "text", "text": "a"}, RESULT]
    more = continued(asked(USER), said, 5)
    assert more.max_tokens == 5
    assert [m.role for m in more.messages] == ["user", "assistant"]
    text, result = list(more.messages[1].content)
    assert isinstance(text, wire.TextBlock)
    assert isinstance(result, wire.ToolSearchResultBlock)


@pytest.mark.parametrize("opening", ["He", [{"type": "text", "text": "He"}]])
def test_a_text_that_the_client_began_goes_on(opening: Any) -> None:
    begun = asked(USER, {"role": "assistant", "content": opening})
    more = continued(begun, [{"type": "text", "text": "llo"}, RESULT], 5)
    assert len(more.messages) == 2
    first = more.messages[1].content[0]
    assert isinstance(first, wire.TextBlock)
    assert first.text == "Hello"
    empty = continued(asked(USER, {"role": "assistant", "content": []}), [RESULT], 5)
    assert len(empty.messages[1].content) == 1


def test_search_tools_of_a_request() -> None:
    tools = [
        {"name": "a", "type": "tool_search_tool_bm25_20251119"},
        {"name": "b", "type": "tool_search_tool_regex"},
        {"name": "c", "input_schema": {"type": "object"}},
        {"name": "d", "type": "tool_search_tool_bm25", "input_schema": {"type": "object"}},
    ]
    assert search_tools(asked(USER, tools=tools)) == {"a": "bm25", "b": "regex"}

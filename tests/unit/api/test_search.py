"""Rounds of a reply become one message: pure, without an engine."""

from __future__ import annotations

from typing import Any

import pytest

from ratoon import wire
from ratoon.api.search import Joint, continued, search_tools
from ratoon.api.stream import SEARCH, MessageFold, ReplyHead, ReplyStream, WireEvent
from ratoon.chat.parser import ReplyParser
from ratoon.engine.events import Event, Finished, FinishReason, Started, Token

HEAD = ReplyHead("msg_1", "m", searches={"lookup": "bm25"})
LOOKUP = '<tool_call>{"name": "lookup", "arguments": {"query": "q"}}</tool_call>'
CALL = '<tool_call>{"name": "read", "arguments": {"path": "p"}}</tool_call>'
TOOLS: Any = {"lookup": {}, "read": {}}
RESULT = {
    "type": "tool_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "tool_search_tool_search_result", "tool_references": []},
}


class Round:
    """What one round says: a token for each piece, as far as the stream wants to hear it."""

    def __init__(
        self,
        *pieces: str,
        reason: FinishReason = FinishReason.STOP,
        n_cached: int = 4,
        head: ReplyHead = HEAD,
        stops: tuple[str, ...] = (),
    ) -> None:
        ids = iter(range(1, 99))
        parser = ReplyParser(stops, True, lambda: f"toolu_{next(ids)}", tools=TOOLS)
        self.stream = ReplyStream(head, parser)
        tokens = [Token(0, piece.encode()) for piece in pieces]
        events: list[Event] = [Started(10, n_cached, "host"), *tokens]
        events.append(Finished(reason, len(pieces)))
        self.batches = [self.stream.feed(e) for e in events if self.stream.stop_reason is None]

    @property
    def events(self) -> list[WireEvent]:
        return [event for batch in self.batches for event in batch]


def feed(joint: Joint, part: Round) -> list[WireEvent]:
    return [event for batch in part.batches for event in joint.feed(batch)]


def message(events: list[WireEvent]) -> dict[str, Any]:
    fold = MessageFold()
    for event in events:
        fold.feed(event)
    return fold.message


def kinds(events: list[WireEvent]) -> list[str]:
    return [event["type"] for event in events if event["type"] != "ping"]


def test_a_reply_without_a_search_passes_unchanged() -> None:
    part = Round("Hi", " ", CALL)
    assert feed(Joint(HEAD), part) == part.events
    assert part.stream.stop_reason == "tool_use"


@pytest.mark.parametrize("pieces", [["Hm.", LOOKUP], ["Hm.", LOOKUP[:40], LOOKUP[40:-1], ">"]])
def test_two_rounds_are_one_message(pieces: list[str]) -> None:
    joint, first = Joint(HEAD), Round(*pieces)
    events = feed(joint, first)
    assert first.stream.stop_reason == SEARCH
    assert first.stream.n_output == len(pieces)
    joint.close_round(len(pieces))
    assert joint.content[-1] == {
        "type": "server_tool_use",
        "id": "srvtoolu_1",
        "name": "lookup",
        "input": {"query": "q"},
    }
    events += joint.answer(RESULT)
    events += feed(joint, Round("So.", CALL, n_cached=9))
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
    assert usage["output_tokens"] == len(pieces) + 2
    assert usage["server_tool_use"]["tool_search_requests"] == 1
    assert [each["cache_read_input_tokens"] for each in usage["iterations"]] == [4, 9]


@pytest.mark.parametrize("pieces", [[LOOKUP, "And", CALL], [LOOKUP + "And" + CALL]])
def test_what_follows_a_search_in_its_round_is_dropped(pieces: list[str]) -> None:
    part = Round(*pieces)
    assert part.stream.stop_reason == SEARCH
    assert part.stream.n_output == 1
    assert kinds(part.events)[-1] == "content_block_stop"
    assert kinds(part.events).count("content_block_start") == 1


@pytest.mark.parametrize("reason", list(FinishReason)[:3])
@pytest.mark.parametrize("pieces", [[CALL, LOOKUP], [CALL + LOOKUP[:60]]])
def test_a_search_behind_a_call_of_the_client_is_not_run(
    reason: FinishReason, pieces: list[str]
) -> None:
    whole = message(Round(*pieces, reason=reason).events)
    assert [block["name"] for block in whole["content"]] == ["read"]
    assert whole["stop_reason"] == "tool_use"
    assert kinds(Round(*pieces, reason=reason).events).count("message_delta") == 1


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (FinishReason.LENGTH, "max_tokens"),
        (FinishReason.CONTEXT, "model_context_window_exceeded"),
    ],
)
def test_a_search_that_was_cut_off_is_not_run(reason: FinishReason, expected: str) -> None:
    part = Round(LOOKUP[:60], reason=reason)
    whole = message(part.events)
    assert whole["stop_reason"] == part.stream.stop_reason == expected
    assert whole["content"][0]["type"] == "server_tool_use"


def test_a_stop_sequence_behind_a_search_comes_too_late() -> None:
    part = Round(LOOKUP + "STOP", stops=("STOP",))
    assert part.stream.stop_reason == SEARCH
    assert "message_delta" not in kinds(part.events)


def test_the_end_between_two_rounds() -> None:
    joint = Joint(HEAD)
    events = feed(joint, Round(LOOKUP))
    joint.close_round(1)
    events += joint.answer(RESULT) + joint.end("pause_turn")
    whole = message(events)
    assert whole["stop_reason"] == "pause_turn"
    assert whole["usage"]["output_tokens"] == 1
    assert kinds(events)[-2:] == ["message_delta", "message_stop"]


def test_the_end_tells_of_context_edits() -> None:
    head = ReplyHead("msg_1", "m", searches={"lookup": "bm25"}, edits=[])
    joint = Joint(head)
    feed(joint, Round(LOOKUP, head=head))
    joint.close_round(1)
    assert joint.end("pause_turn")[0]["context_management"] == {"applied_edits": []}


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

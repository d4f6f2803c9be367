"""The stream machine: whatever the engine and the parser say, clients get a well-formed stream."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.api.stream import MessageFold, ReplyHead, ReplyStream, WireEvent, joined
from ratoon.chat.parser import Delta, ReplyParser, TextDelta, ToolEnd, ToolInput, ToolStart
from ratoon.engine.events import Event, Failed, Finished, FinishReason, Started, Token
from ratoon.errors import InternalError, Overloaded

HEAD = ReplyHead("msg_1", "m")


class ScriptedParser:
    """Gives the next list of deltas for each token, and the last one at the end."""

    def __init__(self, batches: Iterable[list[Delta]], stopped: str | None = None) -> None:
        *self._batches, self._last = batches
        self._stopped = stopped

    @property
    def stopped(self) -> str | None:
        return None if self._batches else self._stopped

    def feed(self, piece: bytes) -> list[Delta]:
        return self._batches.pop(0)

    def finish(self) -> list[Delta]:
        return self._last


def play(stream: ReplyStream, *events: Event) -> list[WireEvent]:
    return [wire_event for event in events for wire_event in stream.feed(event)]


def run(
    batches: list[list[Delta]],
    reason: FinishReason = FinishReason.STOP,
    head: ReplyHead = HEAD,
    stopped: str | None = None,
) -> list[WireEvent]:
    """One token for each batch but the last, which comes at the end."""
    stream = ReplyStream(head, ScriptedParser(batches, stopped))
    events: list[WireEvent] = play(stream, Started(10, 4, "host"))
    for _ in batches[:-1]:
        events += stream.feed(Token(0, b""))
        if stream.stop_reason is not None:
            return events
    return events + stream.feed(Finished(reason, len(batches)))


def fold(events: list[WireEvent]) -> dict[str, Any]:
    whole = MessageFold()
    for event in events:
        whole.feed(event)
    return whole.message


def check_grammar(events: list[WireEvent]) -> None:
    """Blocks are numbered from 0, never overlap, and hold only deltas of their own type."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    is_open, n_blocks, block_type = False, 0, ""
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == n_blocks
                is_open, block_type = True, event["content_block"]["type"]
            case "content_block_delta":
                assert is_open
                assert event["index"] == n_blocks
                expected = {"text": "text_delta", "tool_use": "input_json_delta"}[block_type]
                assert event["delta"]["type"] == expected
            case "content_block_stop":
                assert is_open
                assert event["index"] == n_blocks
                is_open, n_blocks = False, n_blocks + 1
            case kind:
                pytest.fail(f"{kind} within the content")
    assert not is_open


TOOL: list[Delta] = [ToolStart("toolu_1", "ls"), ToolInput('{"a"'), ToolInput(":1}"), ToolEnd()]


def test_text_and_tool() -> None:
    events = run([[TextDelta("a")], [TextDelta("b"), *TOOL], [TextDelta("c")], []])
    check_grammar(events)
    message = fold(events)
    assert message["content"] == [
        {"type": "text", "text": "ab"},
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"a": 1}},
        {"type": "text", "text": "c"},
    ]
    assert message["stop_reason"] == "tool_use"


def test_a_tool_starts_with_an_empty_input() -> None:
    starts = [e for e in run([TOOL]) if e["type"] == "content_block_start"]
    assert starts[0]["content_block"]["input"] == {}


def test_message_start_carries_the_usage() -> None:
    message = run([[]], head=ReplyHead("msg_1", "m", (2, 7), has_marks=True))[0]["message"]
    assert message["content"] == []
    assert message["stop_reason"] is None
    assert message["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 3,
        "cache_read_input_tokens": 4,
        "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 0,
        "service_tier": "standard",
        "server_tool_use": None,
        "iterations": None,
    }


def test_the_last_usage_is_cumulative() -> None:
    events = run([[TextDelta("a")], [TextDelta("b")], []])
    assert events[-2]["usage"] == events[0]["message"]["usage"] | {"output_tokens": 3}


@pytest.mark.parametrize(
    ("reason", "head", "batches", "expected"),
    [
        (FinishReason.STOP, HEAD, [[]], "end_turn"),
        (FinishReason.STOP, HEAD, [TOOL], "tool_use"),
        (FinishReason.LENGTH, HEAD, [TOOL], "max_tokens"),
        (FinishReason.LENGTH, ReplyHead("i", "m", is_clamped=True), [[]], "window"),
        (FinishReason.CONTEXT, HEAD, [[]], "window"),
    ],
)
def test_stop_reasons(
    reason: FinishReason, head: ReplyHead, batches: list[list[Delta]], expected: str
) -> None:
    full = {"window": "model_context_window_exceeded"}.get(expected, expected)
    delta = run(batches, reason, head)[-2]["delta"]
    assert delta == {"stop_reason": full, "stop_sequence": None}


def test_a_stop_sequence_ends_the_message_at_once() -> None:
    events = run([[TextDelta("a")], []], stopped="END")
    check_grammar(events)
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
    assert events[-2]["usage"]["output_tokens"] == 1


def test_a_stop_sequence_found_at_the_end() -> None:
    delta = run([[TextDelta("a")]], stopped="END")[-2]["delta"]
    assert delta == {"stop_reason": "stop_sequence", "stop_sequence": "END"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("{}", {}),
        ('{"a": [1, {"b": "x', {"a": [1, {"b": "x"}]}),
        ('{"a": 1, "b', {"a": 1}),
        ("[1]", {}),
        ("nonsense", {}),
    ],
)
def test_a_call_that_was_cut_off_keeps_what_was_said(text: str, expected: Any) -> None:
    batches: list[list[Delta]] = [[ToolStart("t", "f"), ToolInput(text)]]
    events = run(batches, FinishReason.LENGTH)
    check_grammar(events)
    assert fold(events)["content"][0]["input"] == expected


def test_errors_are_raised_for_the_edge() -> None:
    stream = ReplyStream(HEAD, ScriptedParser([[]]))
    with pytest.raises(Overloaded):
        stream.feed(Failed(Overloaded("busy")))
    with pytest.raises(InternalError):
        stream.feed(Finished(FinishReason.CANCELLED, 0))


deltas = st.one_of(
    st.text(max_size=3).map(lambda text: [TextDelta(text)]),
    st.just(TOOL),
    st.just(TOOL[:1] + TOOL[-1:]),
)
batches = st.lists(st.lists(deltas, max_size=3).map(lambda parts: sum(parts, [])), min_size=1)


@given(batches, st.sampled_from(list(FinishReason)[:3]), st.sampled_from([None, "END"]))
def test_every_stream_is_well_formed(
    batches: list[list[Delta]], reason: FinishReason, stopped: str | None
) -> None:
    events = run(batches, reason, stopped=stopped)
    check_grammar(events)
    blocks = fold(events)["content"]
    fed = [delta for batch in batches for delta in batch]
    assert "".join(b["text"] for b in blocks if b["type"] == "text") == "".join(
        d.text for d in fed if isinstance(d, TextDelta)
    )
    assert sum(b["type"] == "tool_use" for b in blocks) == sum(
        isinstance(d, ToolStart) for d in fed
    )
    assert all(block.get("text") != "" for block in blocks)
    told = json.dumps(events)
    fewer = joined(events)
    check_grammar(fewer)
    assert fold(fewer) == fold(events)
    kinds = [event.get("delta", {}).get("type", n) for n, event in enumerate(fewer)]
    assert all(left != right for left, right in itertools.pairwise(kinds))
    assert json.dumps(events) == told


@given(st.text(alphabet="aé😀\n<>{}STOP"), st.integers(1, 5))
def test_with_the_real_parser_no_byte_is_lost(text: str, size: int) -> None:
    data = text.encode()
    stream = ReplyStream(HEAD, ReplyParser(["STOP"], False, lambda: "toolu_1"))
    events = play(stream, Started(1, 0, "cold"))
    for i in range(0, len(data), size):
        events += stream.feed(Token(0, data[i : i + size]))
        if stream.stop_reason:
            break
    else:
        events += stream.feed(Finished(FinishReason.STOP, 0))
    check_grammar(events)
    assert "".join(b["text"] for b in fold(events)["content"]) == text.partition("STOP")[0]

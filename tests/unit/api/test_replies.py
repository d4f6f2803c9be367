"""What of a reply is remembered, and which replies are not."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from ratoon.api.replies import BlockFold, RecordedStream
from ratoon.api.stream import ReplyHead, ReplyStream
from ratoon.chat.parser import ReplyParser
from ratoon.chat.render import Prompt
from ratoon.engine.events import Event, Failed, Finished, FinishReason, Started, Token
from ratoon.errors import InternalError, RatoonError
from ratoon.reuse.echo import means_same
from ratoon.reuse.replies import (
    EchoedCall,
    Origin,
    Reply,
    ReplyMemory,
    SentCall,
    Text,
    Thought,
    path_digest,
)

ORIGIN = Origin(b"context", "tail", "header")
CALL = '<tool_call>\n{"name": "read", "arguments": {"path":"a"}}\n</tool_call>'


def prompt(origin: Origin | None = ORIGIN) -> Prompt:
    return Prompt([7, 8], (), {}, False, True, 2, origin=origin)


def remembered(
    said: str,
    reason: FinishReason = FinishReason.STOP,
    *,
    stops: tuple[str, ...] = (),
    origin: Origin | None = ORIGIN,
) -> Reply | None:
    """What is kept of a reply that was sampled character by character."""
    memory = ReplyMemory(1 << 20)
    parser = ReplyParser(stops, True, lambda: "toolu_1")
    stream = RecordedStream(ReplyStream(ReplyHead("m", "m"), parser), memory, prompt(origin))
    events: list[Event] = [
        Started(2, 0, "cold"),
        *(Token(ord(char), char.encode()) for char in said),
    ]
    for event in [*events, Finished(reason, len(said))]:
        if stream.stop_reason is None:
            stream.feed(event)
    assert stream.n_output <= len(said)
    kept = list(memory._replies.values())
    return kept[0] if kept else None


def test_tokens_and_blocks() -> None:
    said = f"I look. {CALL}"
    tokens = list(map(ord, said))
    kept = remembered(said)
    assert kept == Reply(
        ORIGIN,
        array("i", tokens),
        (Text("I look."), SentCall("toolu_1", "read", '{"path": "a"}')),
        path_digest([7, 8, *tokens]),
    )


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CONTEXT])
def test_a_reply_cut_off_in_a_call(reason: FinishReason) -> None:
    said = CALL[: CALL.index('a"}') + 1]
    kept = remembered(said, reason)
    assert kept is not None
    raw = '{"path": "a'
    assert kept.blocks == (SentCall("toolu_1", "read", raw, {"path": "a"}),)
    assert kept.tokens.tolist() == list(map(ord, said))
    for value in ({"__unparsedToolInput": {"raw": raw, "len": len(raw)}}, {"path": "a"}):
        assert means_same(kept.blocks, [EchoedCall("toolu_1", "read", value)], {})


def test_what_is_not_remembered() -> None:
    assert remembered("Yes. No.", stops=("No",)) is None
    assert remembered("Yes. No", stops=("No.",)) is not None
    assert remembered("Yes.", origin=None) is None
    assert remembered("") is None
    with pytest.raises(InternalError):
        remembered("Yes", FinishReason.CANCELLED)


def test_a_failed_reply_is_not_remembered() -> None:
    memory = ReplyMemory(1 << 20)
    parser = ReplyParser((), True, lambda: "t")
    stream = RecordedStream(ReplyStream(ReplyHead("m", "m"), parser), memory, prompt())
    stream.feed(Token(65, b"A"))
    with pytest.raises(RatoonError):
        stream.feed(Failed(InternalError("broken")))
    assert len(memory) == 0


def delta(kind: str, **fields: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


def test_blocks_of_every_type() -> None:
    fold = BlockFold()
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                delta("thinking_delta", thinking="Hm"),
                delta("thinking_delta", thinking="."),
                delta("signature_delta", signature="s"),
            ],
        ),
        ({"type": "text", "text": ""}, [delta("text_delta", text="a"), delta("x", text="b")]),
        ({"type": "tool_use", "id": "t", "name": "n", "input": {}}, []),
        (
            {"type": "tool_use", "id": "u", "name": "n", "input": {}},
            [delta("input_json_delta", partial_json=part) for part in ('{"a"', ": 1}")],
        ),
    ]
    for block, deltas in blocks:
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        for event in [start, *deltas, {"type": "content_block_stop", "index": 0}]:
            fold.feed(json.loads(json.dumps(event)))
    assert fold.blocks == [
        Thought("Hm.", "s"),
        Text("ab"),
        SentCall("t", "n", ""),
        SentCall("u", "n", '{"a": 1}'),
    ]

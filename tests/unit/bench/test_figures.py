"""What is made of the times of single replies, and of what a server sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratoon.bench.load import gaps_within, speed
from ratoon.bench.sending import ReplyReader, Result
from ratoon.bench.workloads import context_speed_ratio, first_token_s, without_billing


def result(**given: Any) -> Result:
    return Result(index=0, agent="main", began_s=0.0, **given)


def test_speed_counts_what_follows_the_first_tokens() -> None:
    one = result(n_output=11, deltas_s=[1.0, 3.0, 6.0])
    two = result(n_output=11, deltas_s=[2.0, 5.0])
    assert speed([one]) == 10 / 5
    assert speed([one, two]) == 20 / 5


def test_gaps_are_those_that_touch_the_time() -> None:
    times = [0.0, 1.0, 3.0, 4.0, 9.0, 10.0]
    assert gaps_within(times, 2.0, 5.0) == [2.0, 1.0, 5.0]
    assert gaps_within(times, 9.0, 9.5) == [1.0]
    assert gaps_within(times, 20.0, 30.0) == []


def test_context_speed_compares_known_prompts_with_new_ones() -> None:
    cold = result(n_prompt=1000, n_cached=0, ttft_s=10.0)
    half = result(n_prompt=1000, n_cached=400, ttft_s=0.001)
    known = [result(n_prompt=1000, n_cached=900, ttft_s=s) for s in (0.5, 1.0, 2.0)]
    assert context_speed_ratio([cold, half, *known]) == pytest.approx(10)
    assert context_speed_ratio([cold]) is None
    assert context_speed_ratio(known) is None


def test_a_reply_without_text_took_as_long_as_it_took() -> None:
    assert first_token_s(result(wall_s=3.0)) == 3.0
    assert first_token_s(result(wall_s=3.0, ttft_s=1.0)) == 1.0


def test_only_the_billing_line_goes() -> None:
    record = {"path": "/", "body": {"system": ["billing", "a", "b"], "messages": []}}
    assert without_billing(record)["body"] == {"system": ["a", "b"], "messages": []}
    assert record["body"] == {"system": ["billing", "a", "b"], "messages": []}


def read(*events: dict[str, Any]) -> Result:
    reply = ReplyReader(result())
    for event in events:
        reply.feed(f"data: {json.dumps(event)}")
    reply.end()
    return reply.result


START = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
DELTA = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}
END = {"type": "message_delta", "usage": {"output_tokens": 2}}
STOP = {"type": "message_stop"}


def test_a_reply_is_timed_piece_by_piece() -> None:
    found = read(START, DELTA, DELTA, END, STOP)
    assert (found.n_prompt, found.n_output, found.error) == (3, 2, None)
    assert len(found.deltas_s) == 2
    assert found.ttft_s is not None
    assert "deltas_s" not in found.to_json()


def test_tokens_that_gave_no_text_still_came() -> None:
    found = read(START, END, STOP)
    assert found.ttft_s is not None
    assert read(START, STOP).ttft_s is None


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "api_error", "message": "broken"}},
        {"code": 500, "message": "broken", "type": "server_error"},
    ],
)
def test_errors_in_a_stream_are_seen_in_either_form(event: dict[str, Any]) -> None:
    assert read(START, event).error == "broken"
    assert read(START, DELTA).error == "the stream ended before message_stop"

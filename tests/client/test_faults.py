"""Sessions in which something goes wrong: the client and the server recover without loss.

They run with the client's short prompt, as nothing here depends on the long one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.client.checks import check_extends, check_reused, check_session
from tests.client.conftest import Opened, Stage
from tests.client.driver import Run, wait_for
from tests.client.recorder import Record

pytestmark = [pytest.mark.client, pytest.mark.model, pytest.mark.timeout(600)]

BARE = "--bare"
STREAM_S = 120
END_OF_TURN = 8  # tokens with which the template closes a turn and opens the next
OPENING = 64  # tokens of a first message


@pytest.fixture(scope="module")
def narrow(opened: Opened) -> Iterator[Stage]:
    """One server for the tests that leave it as it is."""
    with opened("--n-ctx", "8192") as stage:
        yield stage


def test_tools_that_fail_and_calls_that_are_none(narrow: Stage) -> None:
    run, records = narrow.play("loose", BARE)
    assert [bool(result.get("is_error")) for result in run.tool_results] == [True] * 3
    assert len(records) == 4
    # what is no call is text, and reaches the user whole
    assert run.result["result"].startswith("<tool_call>")
    check_session(records)


def test_the_client_is_told_what_the_engine_did(narrow: Stage) -> None:
    run, records = narrow.play("more", BARE)
    told = [event["message"]["usage"] for event in run.stream if event["type"] == "message_start"]
    assert [usage["cache_read_input_tokens"] for usage in told] == [r.n_cached for r in records]
    computed = [usage["input_tokens"] + usage["cache_creation_input_tokens"] for usage in told]
    assert computed == [record.n_forwarded for record in records]


def test_a_long_session_is_compacted_and_goes_on(narrow: Stage) -> None:
    run, records = narrow.play("grow", BARE)
    assert run.result["result"] == "It was counted."
    before, asked, after = around_compaction(records)
    check_session(before)
    # the same conversation, and what the client asks
    assert asked.n_shared >= before[-1].n_prompt - END_OF_TURN
    check_reused(asked)
    # a new conversation under the old system prompt and tools
    assert after[0].n_shared >= before[0].n_prompt - OPENING
    check_reused(after[0])
    check_extends(after[1:])
    assert {record.status for record in records} == {200}


def test_a_prompt_that_is_too_long_is_compacted(narrow: Stage) -> None:
    run, records = narrow.play("leap", BARE)
    assert run.result["result"] == "It was counted."
    assert {record.status for record in records} == {200, 400}
    for record in records:
        check_reused(record)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_client_that_is_stopped_stops_the_engine(narrow: Stage, number: signal.Signals) -> None:
    run = begin_streaming(narrow, "endless")
    run.end(number)
    stopped = narrow.server.records[-1]
    assert stopped.outcome == "cancelled"
    assert stopped.n_at_hang_up is not None
    # the step under way, and no other
    assert stopped.n_output - stopped.n_at_hang_up <= 1
    assert stopped.n_output < stopped.max_tokens

    _, records = narrow.play("more", BARE, "--continue")
    assert len(records) == 2
    assert records[0].session == stopped.session
    assert records[0].n_shared >= stopped.n_prompt - END_OF_TURN
    check_reused(records[0])
    check_extends(records[1:])


def test_a_reply_that_is_cut_is_resumed(opened: Opened) -> None:
    # a quarter of the window is the longest reply that the client asks for
    with opened("--n-ctx", "3072") as stage:
        run, records = stage.play("cut", BARE)
        assert [record.outcome for record in records] == ["length", "stop"]
        assert records[0].n_output == records[0].max_tokens == 768
        assert run.result["result"] == "That was the rest."
        check_extends(records)

        _, records = stage.play("cut_call", BARE)
        assert [record.outcome for record in records] == ["length", "stop"]
        check_extends(records)


def test_a_server_that_comes_back_is_used_again(opened: Opened) -> None:
    with opened("--n-ctx", "8192") as stage:
        run = begin_streaming(stage, "long")
        stage.server.kill()
        stage.server.start()
        run.wait()
        assert run.result["result"].endswith("And that was it.")
        # the whole request again, as it was meant
        [again] = stage.server.records
        assert (again.status, again.outcome, again.stream) == (200, "stop", True)


def test_a_full_queue_delays_a_client(opened: Opened) -> None:
    with opened("--n-ctx", "8192", "--n-seq", "1", "--max-queue", "1") as stage:
        running = begin_streaming(stage, "endless")
        others = [stage.begin("more", BARE) for _ in range(2)]
        wait_for(
            lambda: any(record.status == 529 for record in stage.server.seen) or None,
            STREAM_S,
            "a refusal",
        )
        running.end(signal.SIGINT)
        for run in others:
            run.wait()
        records = stage.server.records
        assert [record.status for record in records].count(200) == 5
        assert {record.status for record in records} == {200, 529}
        assert all(record.stream for record in records)


def begin_streaming(stage: Stage, script: str) -> Run:
    """A run whose first reply has begun to come."""
    run = stage.begin(script, BARE)
    wait_for(
        lambda: any(event["type"] == "content_block_delta" for event in run.stream) or None,
        STREAM_S,
        "the reply to begin",
    )
    return run


def around_compaction(records: list[Record]) -> tuple[list[Record], Record, list[Record]]:
    """The requests before it, the one that asks for the summary, and those after it."""
    at = next(
        i
        for i, (record, after) in enumerate(pairwise(records), 1)
        if after.n_messages <= record.n_messages
    )
    return records[:at], records[at], records[at + 1 :]

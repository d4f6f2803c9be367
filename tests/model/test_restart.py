"""Restarts of a real server: what it has computed is on the disk, whichever way it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench.process import Reply, ServerProcess, ask, server_process
from ratoon.bench.replay import ReplayOptions, Report, replay
from ratoon.bench.trace import Recorded, read_trace
from tests import sessions

pytestmark = pytest.mark.model

KINDS = ["llama", "gemma3", "mamba2", "qwen35"]  # one of each kind of memory
N_OUTPUT = 4
MAX_FORWARDED = 0.03  # of the prompt tokens, after a restart


def run(server: ServerProcess, trace: Sequence[Recorded]) -> Report:
    """Replay without a failure, agents side by side."""
    report = replay(trace, ReplayOptions(server.url, max_tokens=N_OUTPUT))
    assert report.errors == []
    return report


def replies_of(server: ServerProcess, trace: Sequence[Recorded]) -> list[Reply]:
    """Those to a trace, one request after the other."""
    return [ask(server.url, request.body, N_OUTPUT) for request in trace]


def check_first(server: ServerProcess) -> None:
    """The first request since the start continued what is on the disk."""
    first = server.ended[0]
    assert first.layer == "disk"
    assert first.n_forwarded < MAX_FORWARDED * first.n_prompt
    figures = server.figures()
    assert figures["disk_loaded"] > 0
    assert figures["disk_bad"] == 0


def trace_of(records: list[sessions.Record], file: Path) -> list[Recorded]:
    return read_trace(sessions.write(records, file))


@pytest.mark.parametrize("name", KINDS)
def test_a_restart_forwards_next_to_nothing(
    tiny_path: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    trace = trace_of(sessions.fan_out(2, 1, seed=21), tmp_path / "trace.jsonl")
    other = trace_of(sessions.coding(1, seed=22), tmp_path / "other.jsonl")
    flags = ["--model", str(tiny_path(name)), "--n-ctx", "2048", "--threads", "1", "--exact"]
    with server_process(tmp_path, *flags, "--cache-dir", str(tmp_path / "states")) as server:
        run(server, trace)
        before = replies_of(server, trace[-1:])
        assert server.ended[0].layer == "cold"
        server.wait_until_written()
        server.kill()

        server.start()
        again = run(server, trace)
        assert again.n_forwarded < MAX_FORWARDED * again.n_prompt
        assert replies_of(server, trace[-1:])[0].content == before[0].content
        check_first(server)
        before = replies_of(server, other)
        assert before[0].n_cached < 0.5 * before[0].n_prompt
        assert server.stop() == 0, "what has just been computed is written before the end"

        server.start()
        after = replies_of(server, other)
        assert [reply.content for reply in after] == [reply.content for reply in before]
        n_prompt = sum(reply.n_prompt for reply in after)
        assert n_prompt - sum(reply.n_cached for reply in after) < MAX_FORWARDED * n_prompt
        check_first(server)
        assert "Traceback" not in server.log

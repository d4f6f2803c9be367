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
    """Replay without a failure."""
    report = replay(trace, ReplayOptions(server.url, max_tokens=N_OUTPUT))
    assert report.errors == []
    return report


def ask_all(server: ServerProcess, trace: Sequence[Recorded]) -> list[Reply]:
    return [ask(server.url, request.body, N_OUTPUT) for request in trace]


def check_again(server: ServerProcess, trace: Sequence[Recorded], replies: list[Reply]) -> None:
    """The trace costs next to nothing on a server that has just been started, and each reply is
    what it was."""
    again = run(server, trace)
    first = server.ended[0]
    assert first.layer == "disk"
    assert first.n_reused == again.results[0].n_cached
    assert again.n_forwarded < MAX_FORWARDED * again.n_prompt
    said = ask_all(server, trace)
    assert [reply.content for reply in said] == [reply.content for reply in replies]
    figures = server.figures()
    assert figures["disk_loaded"] > 0
    assert figures["disk_bad"] == 0


@pytest.mark.parametrize("name", KINDS)
def test_a_restart_forwards_next_to_nothing(
    tiny_path: Callable[[str], Path], name: str, tmp_path: Path
) -> None:
    records = sessions.fan_out(2, 1, seed=21)
    trace = read_trace(sessions.write(records, tmp_path / "trace.jsonl"))
    flags = ["--model", str(tiny_path(name)), "--n-ctx", "2048", "--threads", "1", "--exact"]
    with server_process(tmp_path, *flags, "--cache-dir", str(tmp_path / "states")) as server:
        run(server, trace)
        assert server.ended[0].layer == "cold"
        replies = ask_all(server, trace)
        assert server.stop() == 0
        server.start()
        check_again(server, trace, replies)
        server.wait_until_written()
        server.kill()
        server.start()
        check_again(server, trace, replies)

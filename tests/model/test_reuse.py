"""A coding agent's traffic against a real server: how few prompt tokens are computed."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.oracle import make_renderer, measure
from ratoon.bench import sessions
from ratoon.bench.replay import ReplayOptions, Report, replay
from ratoon.bench.trace import Recorded, read_trace
from ratoon.chat.render import Renderer
from ratoon.config import Settings
from tests.model.live import Live, live

pytestmark = pytest.mark.model

SESSIONS = {
    "coding": sessions.coding(5, seed=1),
    "fan_out": sessions.fan_out(3, 2, seed=2),
    "continued": [*sessions.coding(2, seed=3), *sessions.continued(2, 2, seed=3)],
}
SLACK = 1.05  # what may be forwarded, against what a perfect cache would

# req 52039+41 device reuse=51962 forwarded=77 1.0s (queue 0.0s prefill 0.1s decode 0.9s) seq=0
LINE = re.compile(
    r"req (?P<prompt>\d+)\+(?P<output>\d+) (?P<layer>cold|device|host) "
    r"reuse=(?P<reuse>\d+) forwarded=(?P<forwarded>\d+) (?P<total>\d+\.\d)s "
    r"\(queue (?P<queue>\d+\.\d)s prefill (?P<prefill>\d+\.\d)s decode (?P<decode>\d+\.\d)s\) "
    r"seq=(?P<seq>\d+)"
)

each_session = pytest.mark.parametrize("records", SESSIONS.values(), ids=SESSIONS)


@pytest.fixture
def server(cut4_path: Path) -> Iterator[Live]:
    """A server that has computed nothing yet."""
    with live(Settings(model=str(cut4_path), n_ctx=4096)) as running:
        yield running


@pytest.fixture(scope="module")
def renderer(cut4_path: Path) -> Renderer:
    return make_renderer(cut4_path, None)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "ratoon.engine")
    return caplog


def trace_of(records: Sequence[sessions.Record], folder: Path) -> list[Recorded]:
    return read_trace(sessions.write(records, folder / "trace.jsonl"))


def run(server: Live, trace: Sequence[Recorded], max_tokens: int = 4) -> Report:
    """Replay without a failure."""
    report = replay(trace, ReplayOptions(server.url, max_tokens=max_tokens))
    assert report.errors == []
    return report


def least_forwarded(trace: Sequence[Recorded], renderer: Renderer) -> int:
    """What a cache that forgets nothing computes."""
    return sum(int(row["n_forwarded"]) for row in measure(trace, renderer))


def lines(log: pytest.LogCaptureFixture) -> list[re.Match[str]]:
    """The lines of the requests that ended, each checked for its form."""
    messages = [r.getMessage() for r in log.records if r.getMessage().startswith("req ")]
    found = [LINE.fullmatch(message) for message in messages]
    assert None not in found, messages
    return [match for match in found if match]


@each_session
def test_a_session_forwards_what_is_new_and_its_repetition_nothing(
    server: Live, renderer: Renderer, records: list[sessions.Record], tmp_path: Path
) -> None:
    trace = trace_of(records, tmp_path)
    least = measure(trace, renderer)
    first = run(server, trace)
    assert [result.n_prompt for result in first.results] == [row["n_prompt"] for row in least]
    assert first.n_forwarded <= SLACK * sum(int(row["n_forwarded"]) for row in least)
    assert run(server, trace).n_forwarded < 0.01 * first.n_prompt
    changed = trace_of(sessions.with_new_suffixes(records), tmp_path)
    again = run(server, changed)
    assert again.n_prompt == first.n_prompt
    assert again.n_forwarded < 0.01 * first.n_prompt


def test_changing_billing_suffixes_cost_nothing(
    server: Live, cut4_path: Path, tmp_path: Path
) -> None:
    records = sessions.coding(1, seed=9)
    plain = run(server, trace_of(records, tmp_path))
    with live(Settings(model=str(cut4_path), n_ctx=4096)) as other:
        changed = run(other, trace_of(sessions.with_new_suffixes(records), tmp_path))
    expected = [result.n_forwarded for result in plain.results]
    assert [result.n_forwarded for result in changed.results] == expected


def test_more_agents_than_sequences(cut4_path: Path, renderer: Renderer, tmp_path: Path) -> None:
    trace = trace_of(sessions.fan_out(3, 1, seed=10), tmp_path)
    with live(Settings(model=str(cut4_path), n_ctx=2048, n_cells=2560, n_seq=2)) as server:
        report = run(server, trace)
        with server.engine._lock:
            server.engine.cache.check()
    assert report.n_forwarded <= SLACK * least_forwarded(trace, renderer)


def test_siblings_that_arrive_together_forward_what_they_share_once(
    server: Live, renderer: Renderer, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    trace = trace_of(sessions.siblings_of(sessions.fan_out(4, 0, seed=4)), tmp_path)
    assert all(not request.after for request in trace)
    report = run(server, trace)
    least = least_forwarded(trace, renderer)
    assert report.n_forwarded <= SLACK * least
    assert least < 1.3 * report.results[0].n_prompt
    assert sorted(line["layer"] for line in lines(log)) == ["cold", "device", "device", "device"]


def test_a_new_session_shares_all_but_its_task(server: Live, tmp_path: Path) -> None:
    """A later session of the same client differs in its task only."""
    first = sessions.coding(0, seed=5)
    second = copy.deepcopy(first)
    second[0]["headers"]["x-claude-code-session-id"] = "another"
    second[0]["body"]["messages"][0]["content"][-1]["text"] = "Paint the barn red."
    run(server, trace_of(first, tmp_path))
    (result,) = run(server, trace_of(second, tmp_path)).results
    assert result.n_forwarded < 0.15 * result.n_prompt


def test_a_fork_of_an_evicted_state_is_restored_from_the_host(
    server: Live, renderer: Renderer, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    records = sessions.coding(2, seed=6)
    run(server, trace_of(records, tmp_path))
    server.offload()
    fork = copy.deepcopy(records[-1])
    fork["body"]["messages"][-1]["content"][0]["content"] = "It can't be found."
    both = trace_of([*records, fork], tmp_path)
    log.clear()
    (result,) = run(server, trace_of([fork], tmp_path)).results
    (line,) = lines(log)
    least = int(measure(both, renderer)[-1]["n_forwarded"])
    assert line["layer"] == "host"
    assert result.n_forwarded <= least + 2
    assert int(line["reuse"]) == result.n_cached > 0.9 * result.n_prompt


def test_the_log_tells_what_each_request_took(
    server: Live, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    report = run(server, trace_of(sessions.coding(1, seed=7), tmp_path), max_tokens=80)
    told = lines(log)
    for line, result in zip(told, report.results, strict=True):
        assert int(line["prompt"]) == result.n_prompt
        assert int(line["output"]) == result.n_output
        assert int(line["reuse"]) == result.n_cached
        assert int(line["forwarded"]) == result.n_forwarded
        stages = [float(line[stage]) for stage in ("queue", "prefill", "decode")]
        # each of four figures is rounded to a tenth
        assert float(line["total"]) == pytest.approx(sum(stages), abs=0.2 + 1e-9)
        assert float(line["total"]) <= result.wall_s + 0.05 + 1e-9
    assert max(float(line["decode"]) for line in told) > 0
    assert [line["layer"] for line in told] == ["cold", "device"]


def test_progress_is_told_in_tokens_that_are_forwarded(
    server: Live, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    report = run(server, trace_of(sessions.coding(1, seed=8), tmp_path))
    form = re.compile(r"prefill +(\d+\.\d)% \((\d+)/(\d+) tok seq=\d+\)")
    told = [m for r in log.records if (m := form.fullmatch(r.getMessage()))]
    ends = [int(done) for _, done, total in (m.groups() for m in told) if done == total]
    assert ends == [result.n_forwarded for result in report.results]
    for percent, done, total in (m.groups() for m in told):
        assert float(percent) == pytest.approx(100 * int(done) / int(total), abs=0.051)

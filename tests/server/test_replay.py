"""A replay against the whole server on the dummy model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ratoon.bench.replay import ReplayOptions, replay
from ratoon.bench.trace import Agent, Recorded, order
from ratoon.build import build
from ratoon.config import Settings

from .scripted import serving

HEAD = "You are a careful assistant. " * 20


@pytest.fixture
def dummy_url() -> Iterator[str]:
    server = build(Settings(model="dummy"))
    server.engine.start()
    with serving(server.app) as url:
        yield url
    server.engine.stop()


def session() -> list[Recorded]:
    """A main agent, two sub-agents with a common head, and the main agent again."""
    texts = [("", "start"), ("a", "look left"), ("b", "look right"), ("", "start")]
    requests = []
    for n, (agent, text) in enumerate(texts):
        body = {"model": "m", "max_tokens": 100, "system": HEAD + bool(agent) * "Sub."}
        body["messages"] = [{"role": "user", "content": text}]
        requests.append(Recorded(n, 0.5 * n, Agent("s", agent), "/v1/messages", {}, body))
    return order(requests)


def test_counts_what_was_reused(dummy_url: str) -> None:
    report = replay(session(), ReplayOptions(dummy_url, max_tokens=3))
    assert report.errors == []
    assert [one.agent for one in report.results] == ["main", "a", "b", "main"]
    first, left, right, again = report.results
    assert first.n_cached == 0
    assert min(left.n_cached, right.n_cached) > len(HEAD)
    # a sibling may have taken over the parked state and dropped its short tail
    assert again.n_cached >= len(HEAD)
    assert all(one.n_output == 3 for one in report.results)
    assert all(one.ttft_s is not None and one.ttft_s <= one.wall_s for one in report.results)
    totals = report.to_json()["totals"]
    assert totals["n_prompt"] == totals["n_cached"] + totals["n_forwarded"]
    assert totals["errors"] == 0


def test_failures_are_results(dummy_url: str) -> None:
    bad = [Recorded(0, 0, Agent("s", ""), "/v1/messages", {}, {"model": "m"})]
    (result,) = replay(bad, ReplayOptions(dummy_url)).errors
    assert result.error is not None
    assert result.error.startswith("400 ")
    (result,) = replay(bad, ReplayOptions("http://127.0.0.1:9")).errors
    assert result.error is not None
    assert "ConnectError" in result.error

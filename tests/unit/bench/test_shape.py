"""Made-up traces: as many agents as asked, who share what they should, the same each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratoon.bench.sessions import Session, Sizes, write
from ratoon.bench.shape import MOST_AGENTS, Script, Shape, make_trace
from ratoon.bench.trace import parse, read_trace
from ratoon.errors import ConfigError

SMALL = Sizes().scaled(0.2)


def text(record: dict[str, Any], *, billing: bool = False) -> str:
    """What a prompt is made of, in its order; by default from behind the billing line."""
    body = record["body"]
    system = body["system"][0 if billing else 1 :]
    messages = [[one["role"], *blocks(one["content"])] for one in body["messages"]]
    # marks are not part of a prompt
    bare = json.dumps([body.get("tools"), system, messages])
    return bare.replace(', "cache_control": {"type": "ephemeral"}', "")


def blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A lone text may be a plain string."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def n_shared(one: str, two: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))


@pytest.mark.parametrize("agents", [1, 2, 10, 37, MOST_AGENTS])
@pytest.mark.parametrize("sessions", [1, 7])
def test_agents_are_as_many_as_asked(agents: int, sessions: int) -> None:
    if sessions > agents:
        sessions = agents
    shape = Shape(agents=agents, sessions=sessions, turns=0, sizes=SMALL)
    requests = parse(make_trace(shape))
    assert len({request.agent for request in requests}) == agents
    assert len({request.agent for request in requests if request.agent.is_main}) == sessions


def test_the_same_shape_is_the_same_trace_and_another_seed_another() -> None:
    assert make_trace(Shape(sizes=SMALL)) == make_trace(Shape(sizes=SMALL))
    one, two = (make_trace(Shape(sizes=SMALL, seed=seed))[0] for seed in (0, 1))
    assert n_shared(text(one), text(two)) < len(text(one)) / 10


def test_every_request_waits_for_its_own_agents_last() -> None:
    last: dict[tuple[str, str], int] = {}
    for request in parse(make_trace(Shape(agents=30, sizes=SMALL, side_calls=0))):
        if request.agent in last:
            assert last[request.agent] in request.after
        last[request.agent] = request.index


def test_a_parent_goes_on_after_its_children() -> None:
    shape = Shape(agents=4, sessions=1, siblings=3, depth=1, side_calls=0, resumes=0, sizes=SMALL)
    requests = parse(make_trace(shape))
    ends = {request.agent: request.index for request in requests if not request.agent.is_main}
    assert len(ends) == 3
    assert requests[-1].agent.is_main
    assert set(ends.values()) <= set(requests[-1].after)


def test_depth_is_as_asked() -> None:
    def depth(levels: int) -> int:
        shape = Shape(agents=12, sessions=1, siblings=1, forks=0, depth=levels, sizes=SMALL)
        requests = parse(make_trace(shape))
        started: dict[tuple[str, str], int] = {}
        for request in requests:
            if request.agent not in started:
                above = [started[requests[n].agent] for n in request.after]
                started[request.agent] = max(above, default=-1) + 1
        return max(started.values())

    assert [depth(levels) for levels in (1, 2, 4)] == [1, 2, 4]


def test_a_fork_shares_all_but_its_directive() -> None:
    main = Session(1, SMALL, defers=False).main()
    script = Script()
    first = script.ask(main)
    for n in range(2):
        script.ask(main.fork(f"fork {n}", 20), first)
    parent, one, two = (text(record, billing=True) for record in script.records)
    assert n_shared(parent, one) > len(parent) - 10
    own = len(one) - n_shared(one, two)
    assert 0 < own < len(one) / 3
    assert script.records[1]["headers"] != script.records[2]["headers"]


def test_sessions_of_a_repository_share_what_others_do_not() -> None:
    def first(seed: int, repo: int) -> dict[str, Any]:
        return Session(seed, Sizes(), repo=repo, defers=False).main().ask()

    one, same, other = text(first(1, 0)), text(first(2, 0)), text(first(3, 9))
    assert n_shared(one, same) > len(one) / 2
    assert n_shared(one, other) < len(one) / 10
    billing = [first(seed, 0)["body"]["system"][0]["text"] for seed in (1, 2)]
    assert billing[0] != billing[1]


def test_longer_results_make_longer_requests() -> None:
    def growth(result: int) -> int:
        shape = Shape(agents=1, sessions=1, turns=1, side_calls=0, resumes=0)
        sizes = Sizes(result=result)
        first, second = make_trace(Shape(**{**fields(shape), "sizes": sizes}))
        return len(text(second)) - len(text(first))

    assert growth(400) > growth(40) + 1500


def fields(shape: Shape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__slots__}


def test_resumes_and_side_calls_are_counted() -> None:
    def n_requests(**given: int) -> int:
        shape = {"agents": 1, "sessions": 1, "turns": 2, "side_calls": 0, "resumes": 0} | given
        return len(make_trace(Shape(**shape, sizes=SMALL)))

    assert n_requests() == 3
    assert n_requests(side_calls=2) == 5
    assert n_requests(resumes=2) == 9
    assert n_requests(turns=5) == 6


def test_a_written_trace_is_read_with_its_order(tmp_path: Path) -> None:
    records = make_trace(Shape(sizes=SMALL))
    requests = read_trace(write(records, tmp_path / "t.jsonl"))
    assert [list(request.after) for request in requests] == [one["after"] for one in records]


def test_an_order_that_can_not_be_is_refused(tmp_path: Path) -> None:
    record = make_trace(Shape(sizes=SMALL))[0]
    with pytest.raises(ConfigError, match="not before it"):
        read_trace(write([{**record, "after": [0]}], tmp_path / "t.jsonl"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agents": 0}, "agents must be"),
        ({"agents": MOST_AGENTS + 1}, "agents must be"),
        ({"sessions": 11}, "sessions must be"),
        ({"repositories": 3}, "repositories must be"),
        ({"siblings": 0}, "siblings must be"),
        ({"forks": 4}, "forks must be"),
        ({"depth": 0}, "depth must be"),
        ({"turns": -1}, "must not be negative"),
    ],
)
def test_a_shape_that_can_not_be_is_refused(given: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Shape(**given)  # type: ignore[arg-type]

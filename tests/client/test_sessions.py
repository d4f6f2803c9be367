"""Sessions of Claude Code with its whole prompt, tools and agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.checks import by_agent, check_session
from tests.client.conftest import Opened, Stage
from tests.client.driver import Run, git, make_repository

pytestmark = [pytest.mark.client, pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wide(opened: Opened) -> Iterator[Stage]:
    """One server for all. Its window is no wider than small models have."""
    with opened("--n-ctx", "32768") as stage:
        yield stage


@pytest.fixture(autouse=True)
def _fresh_repository(wide: Stage) -> None:
    make_repository(wide.work)


def test_a_session_edits_a_repository_and_is_continued(wide: Stage) -> None:
    run, records = wide.play("edit")
    assert len(records) == 13
    # the test that failed before the repair, the tool that was asked for what is not there
    assert n_failed(run) == 2
    assert source(wide, "add") == "def add(a, b):\n    return a + b  # café\n"
    assert source(wide, "mul") == "def mul(a, b):\n    return a * b\n"
    assert source(wide, "test_mul").splitlines()[1] == "assert mul(2, 3) == 6"
    assert git(wide.work, "log", "--format=%s").splitlines() == ["Repair", "Begin"]

    continued, more = wide.play("more", "--continue")
    assert continued.result["session_id"] == run.result["session_id"]
    assert "Repair" in continued.tool_results[0]["content"]
    assert len(more) == 2
    check_session(records + more)


def test_siblings_compute_what_they_share_once(wide: Stage) -> None:
    run, records = wide.play("siblings")
    main, *siblings = by_agent(records)
    assert [len(main), *map(len, siblings)] == [3, 2, 2, 2]
    assert n_failed(run) == 0
    first, *others = sorted((each[0] for each in siblings), key=lambda r: -r.n_forwarded)
    assert first.n_prompt > 5000
    for other in others:
        assert other.n_forwarded < 0.1 * other.n_prompt
    check_session(records)


def test_an_agent_in_the_background_runs_beside_the_main_one(wide: Stage) -> None:
    run, records = wide.play("background")
    main, agent = by_agent(records)
    assert len(agent) == 2
    assert len(main) >= 3
    assert n_failed(run) == 0
    check_session(records)


def test_forks_begin_with_what_their_parent_knows(wide: Stage) -> None:
    run, records = wide.play("forks")
    main, *forks = by_agent(records)
    assert len(main) >= 3
    assert [len(each) for each in forks] == [2, 2]
    assert n_failed(run) == 0
    for fork in forks:
        assert fork[0].n_prompt > main[0].n_prompt
        assert fork[0].n_forwarded < 0.05 * fork[0].n_prompt
    check_session(records)


def test_a_tool_that_is_looked_for_joins_the_prompt_where_it_was_found(wide: Stage) -> None:
    run, records = wide.play("search")
    assert n_failed(run) == 0
    offered = [set(record.tools) for record in records]
    assert offered[1] - offered[0] == {"CronList"}
    assert offered[1] == offered[2]
    check_session(records)


def source(stage: Stage, name: str) -> str:
    return (stage.work / "src" / f"{name}.py").read_text(encoding="utf-8")


def n_failed(run: Run) -> int:
    return sum(bool(result.get("is_error")) for result in run.tool_results)

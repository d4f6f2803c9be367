"""Pairs: turns, medians, ratios within pairs, bars, and trials that fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ratoon.bench.pairs import (
    N_TRIES,
    Bar,
    Figures,
    Metric,
    Outcome,
    Spread,
    TrialFailed,
    in_turn,
    measure,
    percentile,
)
from ratoon.bench.sides import RATOON, Remote, Server, Side


@dataclass
class Scripted:
    """A workload whose figures are given, one list a side; ``None`` is a trial that fails."""

    script: dict[str, list[float | None]]
    bars: Sequence[Bar] = ()
    name: str = "scripted"
    title: str = "as written"
    metrics: Sequence[Metric] = (Metric("wall_s", "wall"),)
    calls: list[tuple[str, int]] = field(default_factory=list)

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        assert not folder.exists()
        folder.mkdir()
        self.calls.append((side.name, seed))
        value = self.script[side.name].pop(0)
        if value is None:
            raise TrialFailed("no answer")
        return {"wall_s": value}


@dataclass
class Named:
    """A side that is never started."""

    name: str

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        yield Remote(self.name, "")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name}


SIDES = [Named(RATOON), Named("peer")]


def run(tmp_path: Path, workload: Scripted, n_pairs: int) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    return measure(workload, SIDES, n_pairs, tmp_path, said.append), said


def test_sides_take_turns_and_a_pair_shares_its_seed(tmp_path: Path) -> None:
    workload = Scripted({RATOON: [1, 2, 3], "peer": [4, 5, 6]})
    run(tmp_path, workload, 3)
    assert workload.calls == [
        (RATOON, 0),
        ("peer", 0),
        ("peer", 1),
        (RATOON, 1),
        (RATOON, 2),
        ("peer", 2),
    ]
    assert list(tmp_path.iterdir()) == []


def test_three_sides_are_turned_round() -> None:
    sides = [Named(name) for name in "abc"]
    assert [side.name for side in in_turn(sides, 0)] == ["a", "b", "c"]
    assert [side.name for side in in_turn(sides, 1)] == ["c", "b", "a"]


def test_a_side_may_take_part_in_the_first_pairs_only(tmp_path: Path) -> None:
    workload = Scripted({RATOON: [1, 2, 3], "peer": [4]})
    outcome = measure(workload, SIDES, 3, tmp_path, lambda text: None, {"peer": 1})
    assert workload.calls == [(RATOON, 0), ("peer", 0), (RATOON, 1), (RATOON, 2)]
    assert outcome.ratio("peer", "wall_s") == Spread(0.25, 0.25, 0.25)
    assert outcome.spread(RATOON, "wall_s") == Spread(2, 1, 3)


def test_ratios_are_of_pairs_not_of_all(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, Scripted({RATOON: [1, 8, 3], "peer": [2, 4, 12]}), 3)
    assert outcome.spread(RATOON, "wall_s") == Spread(3, 1, 8)
    assert outcome.ratio("peer", "wall_s") == Spread(0.5, 0.25, 2)
    assert outcome.ratio_of_medians("peer", "wall_s") == 3 / 4
    assert outcome.ratio("peer", "unknown") is None
    assert outcome.spread("peer", "unknown") is None


def test_a_failed_trial_is_repeated_and_told(tmp_path: Path) -> None:
    outcome, said = run(tmp_path, Scripted({RATOON: [1], "peer": [None, 2]}), 1)
    assert outcome.values("peer", "wall_s") == [2]
    assert outcome.repeated == ["peer, pair 1: no answer"]
    assert any("peer failed" in line for line in said)


def test_a_trial_that_never_works_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrialFailed, match="no answer"):
        run(tmp_path, Scripted({RATOON: [1], "peer": [None] * N_TRIES}), 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bar", "ours", "is_met", "margin"),
    [
        (Bar("wall_s", 0.5), 2.0, True, 0.0),
        (Bar("wall_s", 0.5), 3.0, False, -0.5),
        (Bar("wall_s", 0.5), 1.0, True, 0.5),
        (Bar("wall_s", 1.0, is_least=True), 5.0, True, 0.25),
        (Bar("wall_s", 1.0, is_least=True), 3.0, False, -0.25),
        (Bar("wall_s", 2.0, is_ratio=False), 3.0, False, -0.5),
        (Bar("wall_s", 4.0, is_ratio=False), 3.0, True, 0.25),
    ],
)
def test_bars(tmp_path: Path, bar: Bar, ours: float, is_met: bool, margin: float) -> None:
    outcome, _ = run(tmp_path, Scripted({RATOON: [ours], "peer": [4.0]}, [bar]), 1)
    (verdict,) = outcome.verdicts("peer")
    assert verdict.is_met == is_met
    assert bar.margin(verdict.value.median) == pytest.approx(margin)
    assert verdict.against == ("peer" if bar.is_ratio else None)


def test_a_ratio_needs_the_side_it_is_judged_against(tmp_path: Path) -> None:
    outcome, _ = run(tmp_path, Scripted({RATOON: [1], "peer": [2]}, [Bar("wall_s", 1)]), 1)
    assert outcome.verdicts("another") == []


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert percentile([7.0], 0.01) == 7.0
    assert percentile([1.0, 2.0], 0.5) == 1.0
    assert percentile([1.0, 2.0], 0.51) == 2.0

"""Measure two or more sides in turns, and say how they compare.

A trial is one run of a workload on a server just started. A pair is a trial of every side with the
same requests; their order is turned round from pair to pair, so that a machine that grows faster or
slower favours none. Sides are compared within a pair, then over the pairs.
"""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ratoon.bench.process import ServerFailed
from ratoon.bench.sides import RATOON, Side
from ratoon.errors import RatoonError

N_TRIES = 3

Say = Callable[[str], None]
Figures = dict[str, float]


class TrialFailed(RatoonError):
    """A request of a trial was not answered, so its figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure that a workload yields. ``is_better_high``: throughput, not time."""

    name: str
    label: str
    unit: str = "s"
    is_better_high: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """What must be met: by Ratoon's figure, or, if ``is_ratio``, by its ratio to a peer's."""

    metric: str
    limit: float
    is_least: bool = False
    is_ratio: bool = True

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit

    def margin(self, value: float) -> float:
        """By how much of the limit it is met; negative: missed."""
        short = self.limit - value
        return (-short if self.is_least else short) / self.limit

    @property
    def sign(self) -> str:
        return ">=" if self.is_least else "<="


class Workload(Protocol):
    """Something to do with a server."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str:
        """What is done, in a line."""

    @property
    def metrics(self) -> Sequence[Metric]: ...

    @property
    def bars(self) -> Sequence[Bar]: ...

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        """One trial. Equal seeds send equal requests; ``folder`` does not exist yet."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and where the values lie."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))

    def to_json(self) -> Figures:
        return {"median": self.median, "min": self.low, "max": self.high}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A bar, the value that was found, and the side it was compared with."""

    bar: Bar
    value: Spread
    against: str | None

    @property
    def is_met(self) -> bool:
        return self.bar.is_met(self.value.median)


@dataclass(slots=True)
class Outcome:
    """The figures of all trials: ``trials[side][pair]``."""

    workload: Workload
    trials: dict[str, list[Figures]]
    repeated: list[str] = field(default_factory=list)

    @property
    def peers(self) -> list[str]:
        return [name for name in self.trials if name != RATOON]

    def metric(self, name: str) -> Metric:
        """The workload's metric of that name."""
        return next(metric for metric in self.workload.metrics if metric.name == name)

    def values(self, side: str, metric: str) -> list[float]:
        return [figures[metric] for figures in self.trials[side] if metric in figures]

    def spread(self, side: str, metric: str) -> Spread | None:
        """Of one side's figures; ``None`` if it has none."""
        values = self.values(side, metric)
        return Spread.of(values) if values else None

    def ratio(self, peer: str, metric: str) -> Spread | None:
        """Ratoon's figure over the peer's, within each pair that both took part in."""
        pairs = zip(self.trials[RATOON], self.trials[peer], strict=False)
        ratios = [
            ours[metric] / theirs[metric]
            for ours, theirs in pairs
            if ours.get(metric) is not None and theirs.get(metric)
        ]
        return Spread.of(ratios) if ratios else None

    def ratio_of_medians(self, peer: str, metric: str) -> float | None:
        """The same, of the medians over all pairs."""
        ours, theirs = self.spread(RATOON, metric), self.spread(peer, metric)
        return ours.median / theirs.median if ours and theirs and theirs.median else None

    def verdicts(self, peer: str | None) -> list[Verdict]:
        """Every bar that could be judged, ratios against ``peer``."""
        found = []
        for bar in self.workload.bars:
            if not bar.is_ratio:
                value, against = self.spread(RATOON, bar.metric), None
            elif peer in self.trials:
                value, against = self.ratio(peer, bar.metric), peer
            else:
                continue
            if value is not None:
                found.append(Verdict(bar, value, against))
        return found

    def to_json(self) -> dict[str, Any]:
        metrics = [metric.name for metric in self.workload.metrics]
        return {
            "name": self.workload.name,
            "title": self.workload.title,
            "medians": {
                side: {
                    name: found.to_json() for name in metrics if (found := self.spread(side, name))
                }
                for side in self.trials
            },
            "ratios": {peer: self._ratios(peer, metrics) for peer in self.peers},
            "repeated": self.repeated,
            "trials": self.trials,
        }

    def _ratios(self, peer: str, metrics: Sequence[str]) -> dict[str, Any]:
        return {
            name: found.to_json() | {"of_medians": self.ratio_of_medians(peer, name)}
            for name in metrics
            if (found := self.ratio(peer, name))
        }


def measure(
    workload: Workload,
    sides: Sequence[Side],
    n_pairs: int,
    folder: Path,
    say: Say,
    fewer: Mapping[str, int] | None = None,
) -> Outcome:
    """Run all pairs; a side named in ``fewer`` takes part in only the first so many. ``folder``
    takes what servers write; it is removed after each trial."""
    fewer = fewer or {}
    outcome = Outcome(workload, {side.name: [] for side in sides})
    for pair in range(n_pairs):
        here = [side for side in sides if pair < fewer.get(side.name, n_pairs)]
        for side in in_turn(here, pair):
            figures = _try(outcome, side, folder / f"{workload.name}-{pair}", pair, say)
            outcome.trials[side.name].append(figures)
            say(f"{workload.name} {pair + 1}/{n_pairs} {side.name}: {line(workload, figures)}")
    return outcome


def in_turn(sides: Sequence[Side], pair: int) -> list[Side]:
    """First to last, then last to first."""
    return list(sides if pair % 2 == 0 else reversed(sides))


def line(workload: Workload, figures: Figures) -> str:
    """A trial's figures."""
    shown = [metric for metric in workload.metrics if metric.name in figures]
    return ", ".join(f"{metric.label} {figures[metric.name]:.4g} {metric.unit}" for metric in shown)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _try(outcome: Outcome, side: Side, folder: Path, seed: int, say: Say) -> Figures:
    """A trial; one that failed is repeated, and told in the report."""
    for n in range(1, N_TRIES + 1):
        try:
            return outcome.workload.run(side, folder, seed)
        except (TrialFailed, ServerFailed) as error:
            outcome.repeated.append(f"{side.name}, pair {seed + 1}: {error}")
            say(f"{side.name} failed, try {n} of {N_TRIES}: {error}")
            if n == N_TRIES:
                raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    raise AssertionError("unreachable")

"""What a run has found, as data and as rows of a table."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ratoon.bench import peer
from ratoon.bench.pairs import Metric, Outcome, Spread, Verdict
from ratoon.bench.sides import RATOON
from ratoon.bench.suite import Lineup, Match

Row = tuple[str, ...]


class Found(NamedTuple):
    """A match and what came of it."""

    match: Match
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Findings:
    """All of a run."""

    lineup: Lineup
    found: Sequence[Found]

    @property
    def verdicts(self) -> list[tuple[Outcome, Verdict]]:
        judged = self.lineup.judged
        return [(one.outcome, v) for one in self.found for v in one.outcome.verdicts(judged)]

    @property
    def all_met(self) -> bool:
        return all(verdict.is_met for _, verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Everything, the single trials too."""
        return {
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "versions": versions(is_remote=self.lineup.is_remote),
            "model": {
                "file": self.lineup.model.name,
                "bytes": self.lineup.model.stat().st_size,
            },
            "pairs": self.lineup.pairs,
            "judged_against": self.lineup.judged,
            "verdicts": [_verdict_json(outcome, verdict) for outcome, verdict in self.verdicts],
            "workloads": [
                one.outcome.to_json()
                | {"sides": [side.to_json() for side in self.lineup.sides(one.match)]}
                for one in self.found
            ],
        }

    def write(self, file: Path) -> None:
        """Store it as JSON."""
        file.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")


FIGURE_HEADS: Row = ("figure", "side", "median (range)", "Ratoon / it")


def figure_rows(outcome: Outcome) -> Iterator[Row]:
    """One row for each figure and side; each figure's label stands once."""
    for metric in outcome.workload.metrics:
        label = f"{metric.label}, {metric.unit}"
        for side in outcome.trials:
            spread = outcome.spread(side, metric.name)
            if spread is None:
                continue
            ratio = None if side == RATOON else outcome.ratio(side, metric.name)
            n = len(outcome.trials[side])
            name = side if n == len(outcome.trials[RATOON]) else f"{side}, n={n}"
            yield label, name, shown(spread, metric), shown(ratio) if ratio else ""
            label = ""


def verdict_rows(findings: Findings) -> Iterator[tuple[bool, Row]]:
    """One row a bar, and whether it is met."""
    for outcome, verdict in findings.verdicts:
        bar = verdict.bar
        margin = bar.margin(verdict.value.median)
        yield (
            verdict.is_met,
            (
                outcome.workload.name,
                outcome.metric(bar.metric).label,
                f"{bar.sign} {bar.limit:g}" + ("x" if bar.is_ratio else ""),
                shown(verdict.value),
                verdict.against or "itself",
                f"{'PASS' if verdict.is_met else 'FAIL'} by {abs(margin):.0%}",
            ),
        )


VERDICT_HEADS: Row = ("workload", "figure", "bar", "found", "against", "verdict")


def shown(spread: Spread, metric: Metric | None = None) -> str:
    """A median and its range; counts without decimals."""
    is_count = metric is not None and metric.unit == "tokens"
    median, low, high = (
        f"{value:,.0f}" if is_count else f"{value:.3g}"
        for value in (spread.median, spread.low, spread.high)
    )
    return median if low == high else f"{median} ({low} to {high})"


def machine() -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _proc("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": _proc("/proc/meminfo", "MemTotal"),
        "load": [round(value, 2) for value in os.getloadavg()],
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
    }


def versions(*, is_remote: bool) -> dict[str, Any]:
    """Both sides' programs."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in ("ratoon", "llama-cpp-python"):
        found[name] = importlib.metadata.version(name)
    return found if is_remote else found | {"llama-server": peer.build_info()}


def _verdict_json(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    bar = verdict.bar
    found: dict[str, Any] = {
        "workload": outcome.workload.name,
        "metric": bar.metric,
        "bar": f"{bar.sign} {bar.limit:g}",
        "is_ratio": bar.is_ratio,
        "against": verdict.against,
        "is_met": verdict.is_met,
        **verdict.value.to_json(),
    }
    if verdict.against is not None:
        found["of_medians"] = outcome.ratio_of_medians(verdict.against, bar.metric)
    return found


def _proc(file: str, field: str) -> str | None:
    """A line of one of Linux' own files; other systems have none."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError:
        return None
    found = (line for line in text.splitlines() if line.startswith(field))
    return next(found, ":").partition(":")[2].strip() or None

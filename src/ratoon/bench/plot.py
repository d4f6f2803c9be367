"""A picture of a run: every ratio that has a bar, for the README."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from ratoon.bench.pairs import Outcome, Verdict
from ratoon.bench.report import Findings

MET, MISSED, LIMIT = "#2e7d32", "#c62828", "#263238"
FORMATS = ("svg", "png")


def can_plot() -> bool:
    """Whether the library is there; figures and JSON need none."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(findings: Findings, folder: Path) -> list[Path]:
    """Write the picture in each format; none if no ratio was judged."""
    judged = [(outcome, v) for outcome, v in findings.verdicts if v.bar.is_ratio]
    if not judged:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 0.4 * len(judged)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    places = range(len(judged), 0, -1)
    for place, (_, verdict) in zip(places, judged, strict=True):
        value = verdict.value
        axes.barh(place, value.median, color=MET if verdict.is_met else MISSED, height=0.6)
        axes.plot([value.low, value.high], [place, place], color="black", linewidth=1)
        axes.plot([verdict.bar.limit] * 2, [place - 0.4, place + 0.4], color=LIMIT, linewidth=2)
        axes.annotate(
            f" {value.median:.2f}x",
            (max(value.high, verdict.bar.limit), place),
            verticalalignment="center",
            fontsize=8,
        )
    axes.set_yticks(list(places), [_label(*one) for one in judged], fontsize=8)
    axes.axvline(1.0, color="grey", linestyle=":", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_xlabel(
        f"Ratoon / {findings.lineup.judged}, {findings.lineup.pairs} pairs: median and range; "
        "thick line: the bar",
        fontsize=8,
    )
    axes.set_title(f"{findings.lineup.model.stem}", fontsize=9)
    files = [folder / f"bench.{kind}" for kind in FORMATS]
    for file in files:
        figure.savefig(file, dpi=150)
    return files


def _label(outcome: Outcome, verdict: Verdict) -> str:
    label = outcome.metric(verdict.bar.metric).label
    better = "more" if verdict.bar.is_least else "less"
    return f"{outcome.workload.name}: {label} ({better} is better)"

"""Reports: every figure in them comes from the trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratoon.bench import peer
from ratoon.bench.pairs import Bar, Figures, Metric, Outcome
from ratoon.bench.plot import FORMATS, can_plot, draw
from ratoon.bench.report import Findings, Found, figure_rows, verdict_rows
from ratoon.bench.sides import RATOON, Side
from ratoon.bench.suite import BEST, BY_HAND, DEFAULTS, Lineup, Match
from ratoon.errors import ConfigError

URL = "http://127.0.0.1:1"


class Scripted:
    """A workload that was run."""

    name = "scripted"
    title = "as written"
    metrics = (Metric("wall_s", "wall"), Metric("speed", "speed", "tokens/s", True))
    bars = (Bar("wall_s", 0.5), Bar("speed", 3.0, is_least=True, is_ratio=False))

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        raise NotImplementedError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    return file


@pytest.fixture
def findings(model: Path) -> Findings:
    trials: dict[str, list[Figures]] = {
        RATOON: [{"wall_s": 1.0, "speed": 2.0}, {"wall_s": 3.0, "speed": 2.5}],
        URL: [{"wall_s": 4.0}, {"wall_s": 4.0}],
    }
    match = Match(Scripted(), 1)
    found = Found(match, Outcome(match.workload, trials))
    return Findings(Lineup(model, against=URL, pairs=2), [found])


def test_the_file_holds_trials_medians_ratios_and_verdicts(
    findings: Findings, tmp_path: Path
) -> None:
    findings.write(tmp_path / "bench.json")
    report: dict[str, Any] = json.loads((tmp_path / "bench.json").read_text())
    (workload,) = report["workloads"]
    assert workload["trials"][RATOON][0] == {"wall_s": 1.0, "speed": 2.0}
    assert workload["medians"][URL] == {"wall_s": {"median": 4.0, "min": 4.0, "max": 4.0}}
    assert workload["ratios"][URL]["wall_s"] == {
        "median": 0.5,
        "min": 0.25,
        "max": 0.75,
        "of_medians": 0.5,
    }
    assert [(v["metric"], v["is_met"]) for v in report["verdicts"]] == [
        ("wall_s", True),
        ("speed", False),
    ]
    assert [side["name"] for side in workload["sides"]] == [RATOON, URL]
    assert report["model"] == {"file": "m.gguf", "bytes": 4}
    assert report["machine"]["cores"] >= 1
    assert str(tmp_path) not in json.dumps(report)
    assert not findings.all_met


def test_rows_show_medians_and_ranges(findings: Findings) -> None:
    rows = list(figure_rows(findings.found[0].outcome))
    assert rows[0] == ("wall, s", RATOON, "2 (1 to 3)", "")
    assert rows[1] == ("", URL, "4", "0.5 (0.25 to 0.75)")
    assert rows[2][:2] == ("speed, tokens/s", RATOON)
    assert len(rows) == 3
    assert [(is_met, row[-1]) for is_met, row in verdict_rows(findings)] == [
        (True, "PASS by 0%"),
        (False, "FAIL by 25%"),
    ]


@pytest.mark.skipif(not can_plot(), reason="needs the extra 'bench'")
def test_a_picture_has_a_bar_for_each_ratio(findings: Findings, tmp_path: Path) -> None:
    files = draw(findings, tmp_path)
    assert [file.suffix[1:] for file in files] == list(FORMATS)
    assert all(file.stat().st_size > 1000 for file in files)
    assert files[1].read_bytes().startswith(b"\x89PNG")
    assert draw(Findings(findings.lineup, []), tmp_path / "none") == []


def names(lineup: Lineup, match: Match) -> list[str]:
    return [side.name for side in lineup.sides(match)]


def test_who_is_compared_is_as_asked(model: Path) -> None:
    match, restarted = Match(Scripted(), 3), Match(Scripted(), 3, is_restarted=True)
    assert names(Lineup(model), match) == [RATOON, BEST, DEFAULTS]
    assert names(Lineup(model), restarted) == [RATOON, BEST, DEFAULTS, BY_HAND]
    assert names(Lineup(model, has_best=False), restarted) == [RATOON, DEFAULTS]
    assert names(Lineup(model, has_defaults=False), match) == [RATOON, BEST]
    assert names(Lineup(model, against=URL), match) == [RATOON, URL]
    assert Lineup(model).judged == BEST
    assert Lineup(model, has_best=False).judged == DEFAULTS
    assert Lineup(model, against=URL).judged == URL


def test_both_get_the_same_model_threads_and_cells(model: Path) -> None:
    match = Match(Scripted(), 3, {"n_batch": 128})
    ours, best, defaults = (
        s.to_json() for s in Lineup(model, threads=2, n_cells=4096).sides(match)
    )
    assert ours["flags"] == {"--model": "m.gguf", "--n-cells": "4096", "--threads": "2"}
    for theirs in (best, defaults):
        assert theirs["params"]["model.path"] == "m.gguf"
        assert theirs["params"]["n_ctx"] == 4096
        assert theirs["params"]["cpuparams.n_threads"] == 2
        assert theirs["params"]["cpuparams_batch.n_threads"] == 2
    assert (best["params"]["n_parallel"], best["params"]["n_batch"]) == (3, 128)
    assert (defaults["params"]["n_parallel"], defaults["params"]["kv_unified"]) == (4, True)
    assert "n_batch" not in defaults["params"]


def test_a_missing_peer_says_what_to_install(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "PACKAGE", "no_such_package")
    with pytest.raises(ConfigError, match=r"pip install 'ratoon\[bench\]'"):
        Lineup(model).check()
    Lineup(model, against=URL).check()


def test_nothing_to_compare_with_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "PACKAGE", "json")
    with pytest.raises(ConfigError, match="nothing to compare with"):
        Lineup(model, has_best=False, has_defaults=False).check()

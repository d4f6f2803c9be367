"""A comparison with the real llama-server, small: needs the extra ``bench``."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ratoon.bench import peer
from ratoon.bench.sessions import Sizes
from ratoon.bench.sides import RATOON
from ratoon.bench.suite import BEST, BY_HAND, DEFAULTS, Lineup, forks_match, restart_match
from ratoon.bench.workloads import Forks, Restart

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec(peer.PACKAGE) is None, reason="needs the extra 'bench'"
    ),
]
SMALL = Sizes()


def test_forks_share_what_the_peer_computes_again(cut1_path: Path, tmp_path: Path) -> None:
    lineup = Lineup(cut1_path, n_cells=8192, threads=2, pairs=1, has_defaults=False)
    outcome = lineup.run(forks_match(Forks(3, SMALL)), tmp_path, lambda text: None)
    assert outcome.repeated == []
    ours, theirs = (outcome.trials[side][0] for side in (RATOON, BEST))
    assert ours["output"] == theirs["output"] == 4 * 8
    # the same requests, but for the billing line and the marks around turns
    assert ours["prompt"] == pytest.approx(theirs["prompt"], rel=0.1)
    assert ours["forwarded"] < theirs["forwarded"] / 2
    assert list(tmp_path.iterdir()) == []


def test_only_slots_saved_by_hand_outlive_the_peer(cut1_path: Path, tmp_path: Path) -> None:
    lineup = Lineup(cut1_path, n_cells=8192, threads=2, pairs=1)
    outcome = lineup.run(restart_match(Restart(1, SMALL)), tmp_path, lambda text: None)
    shares = {
        side: figures["forwarded"] / figures["prompt"]
        for side, (figures,) in outcome.trials.items()
    }
    assert shares[RATOON] < 0.3
    assert shares[BY_HAND] < 0.3
    assert shares[BEST] > 0.9
    assert shares[DEFAULTS] > 0.9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_process(
    cut1_path: Path, tmp_path: Path, number: signal.Signals
) -> None:
    # found by its command line, which names a model that no other process has
    model = tmp_path / "alone.gguf"
    model.hardlink_to(cut1_path)
    command = [sys.executable, "-m", "ratoon", "bench", "decode", "--model", str(model)]
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            [*command, "--out", str(tmp_path / "out"), "--no-defaults"],
            env=os.environ | {"OMP_WAIT_POLICY": "PASSIVE"},
            stdout=log,
            stderr=log,
        )
    wait_until(lambda: len(processes_of(model)) > 1)
    run.send_signal(number)
    assert run.wait(60) != 0
    wait_until(lambda: processes_of(model) == [])
    assert "Traceback" not in (tmp_path / "log").read_text()


def processes_of(model: Path) -> list[int]:
    """Everything that runs with this model."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and str(model) in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except (OSError, UnicodeDecodeError):
            continue
    return found


def wait_until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_parameters_are_the_peers_own() -> None:
    options = peer.PeerOptions(Path("m.gguf"), 1024, 2)
    import xllamacpp

    for preset in (peer.DEFAULTS, peer.BEST, peer.SHORT_STEPS, peer.SHIFT):
        common = xllamacpp.CommonParams()
        params = options.params(preset)
        for name, value in params.items():
            peer.set_param(common, name, value)
        assert common.n_ctx == 1024
        assert common.cpuparams.n_threads == 2
        assert json.dumps(params)

"""Exact mode: whatever path a state took, the logits are those of a cold run, bit for bit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.model.twins import N_CTX, Bench, open_pair
from tests.synthetic.tiny import RECIPES

pytestmark = pytest.mark.model

N_SCRIPTS = int(os.environ.get("RATOON_TEST_SCRIPTS", "30"))  # on the whole model; two seconds each


def run_scripts(
    path: Path, n_scripts: int, seed: int, n_longest: int = N_CTX - 12, n_threads: int = 1
) -> None:
    model, cold = open_pair(path, n_threads)
    try:
        bench = Bench(model, cold, random.Random(seed), n_longest)
        for _ in range(n_scripts):
            bench.script()
        assert not bench.failures
        assert set(bench.layers) == {"cold", "device", "host"}
        assert bench.engine.scheduler.n_preemptions > 0
        assert bench.n_rows >= 2 * n_scripts
        assert bool(bench.recorder.n_rewinds) == model.shape.memory.has_part
    finally:
        model.close()
        cold.close()


@pytest.mark.parametrize("name", RECIPES)
def test_every_memory_kind(tiny_path: Callable[[str], Path], name: str) -> None:
    run_scripts(tiny_path(name), 25, seed=0)


@pytest.mark.parametrize("seed", range(2))
def test_four_layers(cut4_path: Path, seed: int) -> None:
    run_scripts(cut4_path, 60, seed)


@pytest.mark.timeout(1200)
def test_smollm2(smollm2_path: Path) -> None:
    run_scripts(smollm2_path, N_SCRIPTS, seed=7, n_longest=48, n_threads=0)

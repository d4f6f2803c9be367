"""Sampling: what can be drawn, and that a seed decides alone."""

from __future__ import annotations

import numpy as np
import pytest

from ratoon.engine.request import SamplingParams
from ratoon.engine.sampler import Sampler

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.04, 0.01], np.float32))


def drawn(**params: float) -> set[int]:
    sampler = Sampler(SamplingParams(**({"temperature": 1.0, "seed": 1} | params)))  # type: ignore[arg-type]
    return {sampler.sample(LOGITS) for _ in range(2000)}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 0.0}, {0}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.79}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.0}, {0}),
        ({"min_p": 0.25}, {0, 1, 2}),
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 3, "min_p": 0.5}, {0, 1}),
    ],
)
def test_only_the_kept_tokens_are_drawn(params: dict[str, float], expected: set[int]) -> None:
    assert drawn(**params) == expected


def test_a_seed_repeats() -> None:
    runs = []
    for _ in range(2):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=5))
        runs.append([sampler.sample(LOGITS) for _ in range(50)])
    assert runs[0] == runs[1]


def test_frequencies_follow_the_distribution() -> None:
    sampler = Sampler(SamplingParams(temperature=1.0, seed=3))
    counts = np.bincount([sampler.sample(LOGITS) for _ in range(5000)], minlength=5) / 5000
    assert np.allclose(counts, np.exp(LOGITS), atol=0.03)


def test_a_low_temperature_sharpens() -> None:
    assert drawn(temperature=0.05) == {0}
    assert drawn(temperature=5e-324) == {0}


def test_the_logits_are_left_alone() -> None:
    before = LOGITS.copy()
    drawn(top_k=2, top_p=0.5)
    assert np.array_equal(before, LOGITS)

"""Probabilities of groups of tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ratoon.engine.scores import score


def test_groups_have_the_probabilities_of_their_tokens() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], np.float32)) + 700
    scored = score(logits, [(0,), (1, 2), (), (0, 1, 2, 3)])
    shares = [math.exp(value) for value in scored.log_probs]
    assert shares == pytest.approx([0.1, 0.5, 0.0, 1.0], rel=1e-4)
    assert scored.best == 3


def test_a_token_without_a_chance_has_none() -> None:
    logits = np.array([0.0, -np.inf], np.float32)
    never, always = score(logits, [(1,), (0, 1)]).log_probs
    assert never == -math.inf
    assert always == pytest.approx(0)

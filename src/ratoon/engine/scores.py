"""From logits to the probabilities of groups of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratoon.engine.events import Scored
from ratoon.engine.model import Logits


def score(logits: Logits, groups: Sequence[Sequence[int]]) -> Scored:
    """Log probabilities of each group's tokens together, over the whole vocabulary.

    ``logits`` has shape (n_vocab,) and is not changed. An empty group has no chance.
    """
    values = logits.astype(np.float64)
    values -= values.max()
    log_total = np.log(np.exp(values).sum())
    log_probs = tuple(_log_sum(values[list(group)]) - float(log_total) for group in groups)
    return Scored(log_probs, int(np.argmax(logits)))


def _log_sum(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    highest = float(values.max(initial=-np.inf))
    if highest == -np.inf:
        return highest
    return highest + float(np.log(np.exp(values - highest).sum()))

"""From logits to a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ratoon.engine.model import Logits
from ratoon.engine.request import Guide, SamplingParams
from ratoon.errors import ModelError

MIN_TEMPERATURE = 1e-5  # below it, dividing by it would overflow; the draw is greedy anyway


class Sampler:
    """One request's choice of tokens; holds its random generator.

    ``forced`` tokens come first, whatever the logits and the guide say.
    """

    def __init__(
        self, params: SamplingParams, guide: Guide | None = None, forced: Sequence[int] = ()
    ) -> None:
        self._params = params
        self._guide = guide
        self._forced = list(reversed(forced))
        self._random = np.random.default_rng(params.seed)

    def sample(self, logits: Logits) -> int:
        """The next token. ``logits`` has shape (n_vocab,) and is not changed.

        Raises ModelError when the guide lets no token come.
        """
        if self._forced:
            return self._forced.pop()
        guide = self._guide
        if guide is None:
            return self._draw(logits)
        logits = _masked(logits, guide.allowed())
        while logits.max() > -np.inf:
            token = self._draw(logits)
            if guide.accept(token):
                return token
            logits[token] = -np.inf
        raise ModelError("no token fits the reply's grammar here")

    def _draw(self, logits: Logits) -> int:
        params = self._params
        if params.temperature < MIN_TEMPERATURE:
            return int(np.argmax(logits))
        kept = _top_k(logits, params.top_k)
        scaled = logits[kept].astype(np.float64) / params.temperature
        probs = np.exp(scaled - scaled.max())
        probs /= probs.sum()
        keep = _nucleus(probs, params.top_p) & (probs >= params.min_p * probs.max())
        probs = np.where(keep, probs, 0.0)
        return int(self._random.choice(kept, p=probs / probs.sum()))


def _masked(logits: Logits, allowed: bytes | None) -> Logits:
    """A copy in which no token has a chance that is not allowed."""
    if allowed is None:
        return logits.copy()
    bits = np.unpackbits(np.frombuffer(allowed, np.uint8), count=len(logits), bitorder="little")
    return np.where(bits, logits, np.float32(-np.inf))


def _top_k(logits: Logits, k: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Indices of the ``k`` largest (0: all), in index order so that a seed decides alone."""
    if k <= 0 or k >= len(logits):
        return np.arange(len(logits))
    return np.sort(np.argpartition(logits, -k)[-k:])


def _nucleus(
    probs: np.ndarray[tuple[int], np.dtype[np.float64]], p: float
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The smallest set of most likely tokens whose mass reaches ``p``."""
    if p >= 1.0:
        return np.ones(len(probs), np.bool_)
    order = np.argsort(-probs, kind="stable")
    mass = np.cumsum(probs[order])
    keep = np.zeros(len(probs), np.bool_)
    keep[order[: int(np.searchsorted(mass, p)) + 1]] = True
    return keep

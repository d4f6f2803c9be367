"""What the engine tells about a request: one ``Started``, then ``Token``s or a ``Scored``, then one
last word."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ratoon.errors import RatoonError


class FinishReason(enum.Enum):
    STOP = "stop"  # the model ended its turn
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context window is full
    CANCELLED = "cancelled"  # the caller asked


@dataclass(frozen=True, slots=True)
class Started:
    """Admitted. ``n_cached`` prompt tokens need no computing; ``layer`` says where they came from:
    ``device``, ``host`` or ``cold``."""

    n_prompt: int
    n_cached: int
    layer: str


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token. ``piece`` is its bytes (may end inside a UTF-8 sequence)."""

    token: int
    piece: bytes


@dataclass(frozen=True, slots=True)
class Scored:
    """How likely the token behind the prompt is in each group of candidates, as natural
    logarithms of probabilities over the whole vocabulary, and the most likely token of all."""

    log_probs: tuple[float, ...]
    best: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The end; nothing follows. The end-of-turn token is neither emitted nor in ``n_output``."""

    reason: FinishReason
    n_output: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request is lost; nothing follows."""

    error: RatoonError


Event = Started | Token | Scored | Finished | Failed

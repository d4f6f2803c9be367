"""One request for tokens: what the engine is asked, and what it records while serving it."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ratoon.engine.events import Event


class Priority(enum.IntEnum):
    """Admission class; lower goes first."""

    INTERACTIVE = 0
    BACKGROUND = 1


class RequestState(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. ``temperature`` 0 is greedy and ignores the rest."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


class Guide(Protocol):
    """Decides which tokens may come next in one reply.

    Used on the engine thread only. It follows the reply token by token, preemptions included.
    """

    def allowed(self) -> bytes | None:
        """One bit for each token of the vocabulary, lowest bit first; None: any may come."""
        ...

    def accept(self, token: int) -> bool:
        """Take in the next token. False: it may not come here after all; nothing has changed."""
        ...


@dataclass(slots=True)
class Timings:
    """Clock readings of one request, in seconds on the engine's clock; ``None``: not reached."""

    arrived_s: float = 0.0
    admitted_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None


@dataclass(slots=True, eq=False)
class Request:
    """A prompt to continue; with ``max_tokens`` 0, only to be computed and kept.

    ``emit`` is called on the engine thread, once per event, and must not block.
    ``candidates`` are groups of tokens: the prompt is not continued, but a ``Scored`` tells how
    likely its next token is in each; ``max_tokens`` is 0 then.
    ``boundaries`` are token offsets in the prompt where a saved state is likely to be reused; with
    ``is_passing``, what lies behind the last of them is unlikely to be.
    """

    id: str
    prompt: list[int]
    max_tokens: int
    emit: Callable[[Event], None]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    boundaries: tuple[int, ...] = ()
    priority: Priority = Priority.INTERACTIVE
    guide: Guide | None = None
    candidates: tuple[tuple[int, ...], ...] = ()
    is_passing: bool = False
    label: str = "req"  # what the log calls it

    state: RequestState = RequestState.WAITING
    output: list[int] = field(default_factory=list)
    seq_id: int = -1
    n_retries: int = 0  # times its computation broke and was begun anew
    n_cached: int = 0
    layer: str = "cold"
    n_to_forward: int = 0  # prompt tokens left to compute at admission
    n_forwarded: int = 0  # prompt tokens computed so far
    timings: Timings = field(default_factory=Timings)

    @property
    def wants_logits(self) -> bool:
        """Whether what comes behind the prompt is of interest."""
        return self.max_tokens > 0 or bool(self.candidates)

    @property
    def n_lasting(self) -> int:
        """How many tokens' state is worth keeping for long."""
        return max(self.boundaries, default=0) if self.is_passing else sys.maxsize

    @property
    def n_tokens(self) -> int:
        """Tokens known so far: the prompt and what has been sampled."""
        return len(self.prompt) + len(self.output)

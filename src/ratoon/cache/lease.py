"""What a request for a sequence gets: a lease on one, or a reason to ask again later."""

from __future__ import annotations

from dataclasses import dataclass, field

from ratoon.cache.placement import SeqId, Snapshot
from ratoon.cache.slots import Slot


@dataclass(eq=False, slots=True)
class Lease:
    """A request's hold on a sequence that already has its first ``n_cached`` tokens.

    ``cuts`` are token counts at which a prefill chunk must end; a cut in ``saves`` is where the
    state is saved.
    """

    slot: Slot
    n_cached: int
    layer: str
    origins: tuple[Snapshot, ...] = ()  # what it was restored from
    cuts: set[int] = field(default_factory=set)
    saves: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Wait:
    """These first ``n_tokens`` will soon be there: the request on the sequence ``leader`` computes
    them, or, without one, they are being read from disk. Waiting beats computing."""

    n_tokens: int
    leader: SeqId | None = None


@dataclass(frozen=True, slots=True)
class Full:
    """No sequence id or not enough cells until a running request ends."""

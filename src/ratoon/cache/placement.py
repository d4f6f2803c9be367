"""Where the state of a token prefix lives, and the operations that move it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NewType

SeqId = NewType("SeqId", int)


class MemoryKind(enum.Enum):
    """What a model's memory allows to be cut off."""

    FULL = "full"  # attention over everything: any range can be removed
    WINDOW = "window"  # sliding window: old cells are gone, only the tail can be cut
    RECURRENT = "recurrent"  # one state per sequence: whole or nothing
    HYBRID = "hybrid"  # attention beside recurrence: whole or nothing

    @property
    def can_trim(self) -> bool:
        """Whether a state for ``n`` tokens can be cut back to any shorter prefix."""
        return self is MemoryKind.FULL


@dataclass(eq=False, slots=True)
class Snapshot:
    """Saved state of ``n_tokens`` tokens in host memory.

    Created by the decision to save and filled when the engine executes it; until then ``data`` is
    ``None`` and ``n_bytes`` is an estimate. Operations run in the order they were decided, so a
    later restore always finds the bytes.
    """

    n_tokens: int
    n_bytes: int
    data: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """Make ``dst`` hold the first ``n_tokens`` of ``src``. Shares cells where the memory allows."""

    src: SeqId
    dst: SeqId
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget the last tokens of a sequence, keeping the first ``n_keep`` (0: all of it)."""

    seq_id: SeqId
    n_keep: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Copy a whole sequence to host memory."""

    seq_id: SeqId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Restore:
    """Make an empty sequence hold a snapshot, cut to its first ``n_tokens``."""

    snapshot: Snapshot
    seq_id: SeqId
    n_tokens: int


CacheOp = Copy | Drop | Save | Restore

"""Where the state of a token prefix lives, and the operations that move it."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import NewType

SeqId = NewType("SeqId", int)

ALL = sys.maxsize  # tokens: however many there are


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

    @property
    def has_part(self) -> bool:
        """Whether most of a state can be cut back, and only a small part of it can't."""
        return self in (MemoryKind.WINDOW, MemoryKind.HYBRID)

    @property
    def has_cells(self) -> bool:
        """Whether tokens take room on the device, besides that of their sequence."""
        return self is not MemoryKind.RECURRENT


@dataclass(eq=False, slots=True)
class Snapshot:
    """Saved state of ``n_tokens`` tokens in host memory: whole, or the part that can't be cut.

    A part (a window, recurrent states) is small. It turns any longer state that begins with the
    same tokens, its *carrier*, into one of ``n_tokens``.

    Only its first ``n_lasts`` tokens are worth the room; the others just lie behind them.

    Created by the decision to save and filled when the engine executes it; until then ``data`` is
    ``None`` and ``n_bytes`` is an estimate. Operations run in the order they were decided, so a
    later restore always finds the bytes.
    """

    n_tokens: int
    n_bytes: int
    is_part: bool = False
    data: memoryview | None = None
    n_lasting: int = ALL

    @property
    def n_lasts(self) -> int:
        return min(self.n_tokens, self.n_lasting)


@dataclass(eq=False, slots=True)
class Stored:
    """A state in a file that ``key`` names. ``snapshot.data`` is its content while it is mapped."""

    key: str
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Copy:
    """Make ``dst`` hold the first ``n_tokens`` of ``src``. Shares cells where the memory allows.
    Of memory that can't be cut it holds more, and is rewound next."""

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
    """Copy a sequence to host memory, or the part of it that the snapshot wants."""

    seq_id: SeqId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Restore:
    """Make an empty sequence hold a whole snapshot, cut to its first ``n_tokens``."""

    snapshot: Snapshot
    seq_id: SeqId
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Rewind:
    """Take a sequence back to the tokens of a part, with what the part has saved."""

    seq_id: SeqId
    snapshot: Snapshot


CacheOp = Copy | Drop | Save | Restore | Rewind

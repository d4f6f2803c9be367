"""What the engine may ask of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.chat.vocab import Vocab
from ratoon.errors import RatoonError

Logits = NDArray[np.float32]


class NoRoom(RatoonError):
    """The batch found no free KV cells; nothing was computed."""


class BadState(RatoonError):
    """A saved state was refused; the sequence is empty."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one sequence: ``tokens`` at positions ``start``, ``start + 1``, ..."""

    seq_id: SeqId
    start: int
    tokens: list[int]
    wants_logits: bool  # of the last row only


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the cache and the scheduler must know of the memory.

    ``n_ctx`` is the most tokens one sequence can hold. Where ``is_unified``, all sequences share
    ``n_cells`` cells; otherwise each has ``n_ctx`` of its own.
    """

    n_ctx: int
    n_cells: int
    n_seq: int
    n_batch: int
    n_ubatch: int
    memory: MemoryKind
    is_unified: bool
    bytes_per_token: int  # of saved state that can be cut; an estimate
    state_bytes: int = 0  # of what can't, whatever the number of tokens: a window, recurrent states
    window: int = 0  # tokens that the layers with a sliding window see
    save_step: int = 1  # once longer than the window, a state is its own only at multiples of this


class Model(Protocol):
    """A language model with per-sequence memory. All but ``vocab`` belongs to one thread."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> ModelShape: ...

    @property
    def vocab(self) -> Vocab: ...

    @property
    def chat_template(self) -> str | None: ...

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends the model's turn."""
        ...

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        """Compute all chunks; one entry per chunk, shape (n_vocab,), valid until the next call.

        Raises NoRoom (nothing was computed) or ModelError (the affected sequences are unknown).
        """
        ...

    def copy(self, src: SeqId, dst: SeqId, n_tokens: int) -> None:
        """Make the empty ``dst`` hold the first ``n_tokens`` of ``src``. Where memory can't be cut
        these are all of ``src``, unless ``dst`` is rewound next."""
        ...

    def drop(self, seq_id: SeqId, n_keep: int) -> None:
        """Keep only the first ``n_keep`` tokens of a sequence."""
        ...

    def save(self, seq_id: SeqId) -> memoryview:
        """The whole state of a sequence."""
        ...

    def save_part(self, seq_id: SeqId) -> memoryview:
        """Only what of it can't be cut."""
        ...

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        """Fill an empty sequence from a whole state. Raises BadState, leaving it empty."""
        ...

    def rewind(self, seq_id: SeqId, data: memoryview, n_tokens: int) -> None:
        """Go back to ``n_tokens``, at which ``data`` was saved as a part: of this sequence or of
        another that began alike. Raises BadState, leaving the sequence empty."""
        ...

    def close(self) -> None: ...

"""Exact mode: logits that don't depend on how a prompt was cut, cached or batched.

Kernels differ between one row and several, so no row is ever computed alone. Where a row can be
forgotten again, a lone one is paired with a dummy. Where it can't (a recurrent state has no way
back), a lone row stays *late*: it is computed with the next one; if its logits are wanted at once,
a pair is computed and the state put back to where it was. A saved state includes the late token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ratoon.cache.placement import SeqId
from ratoon.engine.model import Chunk, Logits

DUMMY = 0  # any token
NO_TOKEN = -1


class Rows(Protocol):
    """What exact mode needs of the model."""

    def forward_rows(self, chunks: Sequence[Chunk]) -> list[Logits | None]: ...

    def read_part(self, seq_id: SeqId) -> memoryview: ...

    def write_part(self, seq_id: SeqId, data: memoryview) -> None: ...

    def cut(self, seq_id: SeqId, n_keep: int) -> None: ...


class Pairing:
    """Computes rows by twos at least, one sequence and one ubatch at a time."""

    def __init__(self, rows: Rows, n_ubatch: int, can_cut: bool) -> None:
        self._rows = rows
        self._n_ubatch = n_ubatch
        self._can_cut = can_cut  # whether the last row can be forgotten
        self._late: dict[SeqId, int] = {}

    def forward(self, chunk: Chunk) -> Logits | None:
        seq_id, start, tokens = chunk.seq_id, chunk.start, chunk.tokens
        if seq_id in self._late:
            start, tokens = start - 1, [self._late.pop(seq_id), *tokens]
        logits: Logits | None = None
        while len(tokens) > 1:
            part, tokens = tokens[: self._n_ubatch], tokens[self._n_ubatch :]
            wants = chunk.wants_logits and not tokens
            (out,) = self._rows.forward_rows([Chunk(seq_id, start, part, wants)])
            logits = None if out is None else out.copy()
            start += len(part)
        if not tokens:
            return logits
        return self._forward_lone(Chunk(seq_id, start, tokens, chunk.wants_logits))

    def _forward_lone(self, row: Chunk) -> Logits | None:
        if self._can_cut:
            return self._forward_pair(row)
        self._late[row.seq_id] = row.tokens[0]
        if not row.wants_logits:
            return None
        return self._forward_pair(row, self._rows.read_part(row.seq_id))

    def _forward_pair(self, row: Chunk, before: memoryview | None = None) -> Logits | None:
        """A row and a dummy, of which the row stays; nothing does where it is late."""
        dummy = Chunk(row.seq_id, row.start + 1, [DUMMY], wants_logits=False)
        out = self._rows.forward_rows([row, dummy])[0]
        logits = None if out is None else out.copy()
        if before is not None:
            self._rows.write_part(row.seq_id, before)
        self._rows.cut(row.seq_id, row.start + self._can_cut)
        return logits

    # --- the late token as a part of the state ---------------------------------------------------

    def forget(self, seq_id: SeqId) -> None:
        """The sequence is emptied."""
        self._late.pop(seq_id, None)

    def late(self, seq_id: SeqId) -> int:
        """The late token or ``NO_TOKEN``."""
        return self._late.get(seq_id, NO_TOKEN)

    def set_late(self, seq_id: SeqId, token: int) -> None:
        self.forget(seq_id)
        if token != NO_TOKEN:
            self._late[seq_id] = token

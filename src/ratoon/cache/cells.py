"""A mirror of llama.cpp's KV cell allocator, kept without asking C.

llama.cpp tells neither how many cells are used nor which is the highest, yet both decide cost:
attention runs over every cell up to the highest used one. The rules mirrored here are those of
``llama_kv_cache::find_slot``, ``apply_ubatch`` and ``seq_rm``: cells are taken upwards from a head,
the head returns to 0 when it is far above the used count, and to the lowest cell freed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from ratoon.cache.placement import SeqId


class CellMap:
    """Which cells each sequence holds. ``n_used`` counts a shared cell once."""

    def __init__(self, n_cells: int, n_ubatch: int) -> None:
        self.n_cells = n_cells
        self._n_ubatch = n_ubatch
        self._taken = bytearray(n_cells)
        self._owners = array("H", bytes(2 * n_cells))
        self._held: dict[SeqId, list[int]] = {}
        self._head = 0
        self.n_used = 0

    @property
    def n_free(self) -> int:
        return self.n_cells - self.n_used

    @property
    def top(self) -> int:
        """One above the highest used cell."""
        return self._taken.rfind(1) + 1

    def count(self, seq_id: SeqId) -> int:
        """Cells a sequence holds, shared ones included."""
        return len(self._held.get(seq_id, ()))

    def count_own(self, seq_id: SeqId, start: int) -> int:
        """Cells from the ``start``-th on that no other sequence holds."""
        return sum(self._owners[cell] == 1 for cell in self._held.get(seq_id, [])[start:])

    def extend(self, parts: Iterable[tuple[SeqId, int]]) -> None:
        """Rows of one batch, in order: (sequence, number of rows)."""
        rows: list[SeqId] = []
        for seq_id, n in parts:
            rows.extend([seq_id] * n)
        for i in range(0, len(rows), self._n_ubatch):
            self._take(rows[i : i + self._n_ubatch])

    def restore(self, seq_id: SeqId, n: int) -> None:
        """A snapshot of ``n`` tokens is read into an empty sequence."""
        self._take([seq_id] * n)

    def share(self, src: SeqId, dst: SeqId, n: int) -> None:
        """``dst`` now holds the first ``n`` cells of ``src`` too."""
        cells = self._held.get(src, [])[:n]
        for cell in cells:
            self._owners[cell] += 1
        self._held[dst] = cells

    def cut(self, seq_id: SeqId, n_keep: int) -> None:
        """Forget a sequence's cells past the first ``n_keep``."""
        cells = self._held.get(seq_id, [])
        lowest = self.n_cells
        for cell in cells[n_keep:]:
            self._owners[cell] -= 1
            if not self._owners[cell]:
                self._taken[cell] = 0
                self.n_used -= 1
                lowest = min(lowest, cell)
        if lowest < self._head:
            self._head = lowest
        if n_keep:
            del cells[n_keep:]
        else:
            self._held.pop(seq_id, None)

    def _take(self, rows: list[SeqId]) -> None:
        if len(rows) > self.n_free:
            raise ValueError(f"{len(rows)} rows for {self.n_free} free cells")
        if self._head > self.n_used + 2 * len(rows):
            self._head = 0
        cell = self._head - 1
        for seq_id in rows:
            cell = self._taken.find(0, cell + 1)
            if cell < 0:
                cell = self._taken.find(0)
            self._taken[cell] = 1
            self._owners[cell] = 1
            self._held.setdefault(seq_id, []).append(cell)
        self._head = cell + 1
        self.n_used += len(rows)

"""The mirror of the cell allocator: counts stay true under any mix of operations."""

from __future__ import annotations

import random

import pytest

from ratoon.cache.cells import CellMap
from ratoon.cache.placement import SeqId


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_true(seed: int) -> None:
    rng = random.Random(seed)
    cells = CellMap(300, n_ubatch=16)
    for _ in range(300):
        seqs = [SeqId(rng.randrange(5)) for _ in range(2)]
        kind = rng.choice(["extend", "share", "cut", "restore"])
        if kind == "extend" and cells.n_free >= 60:
            cells.extend([(seq_id, rng.randint(1, 30)) for seq_id in seqs])
        elif kind == "share" and cells.count(seqs[1]) == 0 and seqs[0] != seqs[1]:
            cells.share(seqs[0], seqs[1], rng.randint(0, cells.count(seqs[0])))
        elif kind == "cut":
            cells.cut(seqs[0], rng.randint(0, cells.count(seqs[0])))
        elif kind == "restore" and cells.count(seqs[0]) == 0 and cells.n_free >= 20:
            cells.restore(seqs[0], 20)
        held = {cell for i in range(5) for cell in cells._held.get(SeqId(i), [])}
        assert cells.n_used == len(held)
        assert cells.top == max(held, default=-1) + 1


def test_shared_cells_count_once() -> None:
    cells = CellMap(100, 16)
    cells.extend([(SeqId(0), 40)])
    cells.share(SeqId(0), SeqId(1), 30)
    assert cells.n_used == 40
    cells.cut(SeqId(0), 0)
    assert cells.n_used == 30
    assert cells.count(SeqId(1)) == 30


def test_a_removed_neighbour_leaves_the_top_where_it_was() -> None:
    cells = CellMap(100, 16)
    cells.extend([(SeqId(0), 50), (SeqId(1), 10)])
    cells.cut(SeqId(0), 0)
    assert (cells.n_used, cells.top) == (10, 60)


def test_more_rows_than_cells_are_refused() -> None:
    cells = CellMap(10, 16)
    with pytest.raises(ValueError, match="11 rows"):
        cells.extend([(SeqId(0), 11)])

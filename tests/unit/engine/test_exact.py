"""Pairing rows, on a memory that remembers what it was given."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

import numpy as np
import pytest

from ratoon.cache.placement import SeqId
from ratoon.engine.exact import NO_TOKEN, Pairing
from ratoon.engine.model import Chunk, Logits

SEQ = SeqId(3)
N_UBATCH = 8


class Memory:
    """One sequence; the logits after a row are the tokens up to it."""

    def __init__(self, can_cut: bool) -> None:
        self.can_cut = can_cut
        self.tokens: list[int] = []

    def forward_rows(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        assert 2 <= sum(len(chunk.tokens) for chunk in chunks) <= N_UBATCH
        out: list[Logits | None] = []
        for chunk in chunks:
            assert chunk.start == len(self.tokens)
            self.tokens += chunk.tokens
            out.append(np.array(self.tokens, np.float32) if chunk.wants_logits else None)
        return out

    def read_part(self, seq_id: SeqId) -> memoryview:
        assert not self.can_cut
        return memoryview(array("i", self.tokens).tobytes())

    def write_part(self, seq_id: SeqId, data: memoryview) -> None:
        self.tokens = list(memoryview(data).cast("i"))

    def cut(self, seq_id: SeqId, n_keep: int) -> None:
        assert self.can_cut or n_keep == len(self.tokens)
        del self.tokens[n_keep:]


@pytest.mark.parametrize("can_cut", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_computed_alone(can_cut: bool, seed: int) -> None:
    rng = random.Random(seed)
    memory = Memory(can_cut)
    pairing = Pairing(memory, N_UBATCH, can_cut)
    known: list[int] = []
    for _ in range(60):
        tokens = [rng.randrange(1, 100) for _ in range(rng.choice([1, 1, 1, 2, 3, 9, 17]))]
        wants = rng.random() < 0.7
        logits = pairing.forward(Chunk(SEQ, len(known), tokens, wants))
        known += tokens
        late = pairing.late(SEQ)
        assert memory.tokens + [late] * (late != NO_TOKEN) == known
        assert (late == NO_TOKEN) or not can_cut
        if wants:
            assert logits is not None
            assert logits.tolist() == known
        else:
            assert logits is None


def test_an_emptied_sequence_has_nothing_late() -> None:
    pairing = Pairing(Memory(can_cut=False), N_UBATCH, can_cut=False)
    pairing.forward(Chunk(SEQ, 0, [5], wants_logits=False))
    assert pairing.late(SEQ) == 5
    pairing.forget(SEQ)
    assert pairing.late(SEQ) == NO_TOKEN

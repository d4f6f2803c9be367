"""The mirror of llama.cpp's cell allocator against what llama.cpp itself logs."""

from __future__ import annotations

import logging
import random
import re
from pathlib import Path

import pytest

from ratoon.cache.cells import CellMap
from ratoon.cache.placement import SeqId
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Chunk
from ratoon.engine.options import ModelOptions

pytestmark = pytest.mark.model

N_SEQ = 5
LOGGED = re.compile(r"find_slot: stream\[0\], n = +(\d+), used = +(\d+), head = +(\d+)")


class Pair:
    """The model and its mirror, driven alike."""

    def __init__(self, model: LlamaModel, rng: random.Random) -> None:
        self.model, self.rng = model, rng
        self.cells = CellMap(model.shape.n_cells, model.shape.n_ubatch)

    def act(self) -> None:
        rng, src, dst = self.rng, SeqId(self.rng.randrange(N_SEQ)), SeqId(self.rng.randrange(N_SEQ))
        held = self.cells.count(src)
        kind = rng.choice(["forward", "forward", "cut", "share", "move"])
        if kind == "forward":
            self.forward([src] if src == dst else [src, dst])
        elif kind == "cut":
            n_keep = rng.choice([0, rng.randint(0, held)])
            self.model.drop(src, n_keep)
            self.cells.cut(src, n_keep)
        elif held and not self.cells.count(dst):
            n = rng.randint(1, held)
            if kind == "share":
                self.model.copy(src, dst, n)
                self.cells.share(src, dst, n)
            elif self.cells.n_free > held:
                self.model.restore(dst, self.model.save(src))
                self.cells.restore(dst, held)

    def forward(self, seq_ids: list[SeqId]) -> None:
        parts = [(seq_id, self.rng.randint(1, 60)) for seq_id in seq_ids]
        if sum(n for _, n in parts) > self.cells.n_free:
            return
        chunks = [
            Chunk(seq_id, self.cells.count(seq_id), [7] * n, wants_logits=False)
            for seq_id, n in parts
        ]
        self.model.forward(chunks)
        self.cells.extend(parts)


@pytest.mark.parametrize("seed", range(3))
def test_the_mirror_is_true(
    cut4_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("LLAMA_KV_CACHE_DEBUG", "1")
    caplog.set_level(logging.DEBUG, "ratoon.llama")
    options = ModelOptions(n_ctx=768, n_cells=768, n_seq=N_SEQ, n_batch=128, n_ubatch=32)
    model = load_model(cut4_path, options)
    pair = Pair(model, random.Random(seed))
    n_compared = 0
    try:
        for _ in range(150):
            pair.act()
            expected = (pair.cells.top, pair.cells.n_used)
            caplog.clear()
            if pair.cells.n_free:
                seq_id = SeqId(0)
                start = pair.cells.count(seq_id)
                model.forward([Chunk(seq_id, start, [7], wants_logits=False)])
                pair.cells.extend([(seq_id, 1)])
                found = LOGGED.search(caplog.text)
                assert found is not None
                assert (int(found[1]), int(found[2])) == expected
                n_compared += 1
    finally:
        model.close()
    assert n_compared > 50

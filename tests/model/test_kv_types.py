"""Compressed KV memory: states are saved, restored, forked and cut as with any other.

Flash attention makes numbers depend on where cells lie, so each path's largest difference in a
logit from a cold run is printed beside a control: cold runs in other chunks or beside others.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ratoon.cache.placement import SeqId
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Chunk, Logits
from ratoon.engine.options import ModelOptions

pytestmark = pytest.mark.model

N_PROMPT = 300
N_HALF = 150
A, B, C = SeqId(0), SeqId(1), SeqId(2)


class Paths:
    """One prompt, reached by several ways from a clear memory."""

    def __init__(self, model: LlamaModel) -> None:
        self.model = model
        rng = random.Random(1)
        self.prompt, self.other = (
            [rng.randrange(model.vocab.n_tokens) for _ in range(N_PROMPT)] for _ in range(2)
        )

    def prefill(self, seq_id: SeqId, tokens: list[int], start: int = 0, chunk: int = 512) -> Logits:
        logits: Logits | None = None
        for i in range(0, len(tokens), chunk):
            part = Chunk(seq_id, start + i, tokens[i : i + chunk], wants_logits=True)
            (logits,) = self.model.forward([part])
        assert logits is not None
        return logits.copy()

    def finish(self, seq_id: SeqId) -> Logits:
        return self.prefill(seq_id, self.prompt[N_HALF:], N_HALF)

    def cold(self) -> Logits:
        return self.prefill(A, self.prompt)

    def in_small_chunks(self) -> Logits:
        return self.prefill(A, self.prompt, chunk=37)

    def beside_another(self) -> Logits:
        self.prefill(B, self.other[:100])
        return self.prefill(A, self.prompt)

    def restored(self) -> Logits:
        self.prefill(A, self.prompt[:N_HALF])
        saved = self.model.save(A)
        self.model.drop(A, 0)
        self.prefill(B, self.other[:100])
        self.model.restore(C, saved)
        return self.finish(C)

    def forked(self) -> Logits:
        self.prefill(A, self.prompt[:N_HALF])
        self.model.copy(A, B, N_HALF)
        self.prefill(A, self.other, N_HALF)
        return self.finish(B)

    def cut_back(self) -> Logits:
        """Where memory can't be cut, by a part."""
        self.prefill(A, self.prompt[:N_HALF])
        part = self.model.save_part(A)
        self.prefill(A, self.other, N_HALF)
        if self.model.shape.memory.can_trim:
            self.model.drop(A, N_HALF)
        else:
            self.model.rewind(A, part, N_HALF)
        return self.finish(A)

    def carried(self) -> Logits:
        """A part on a restored longer state."""
        self.prefill(A, self.prompt[:N_HALF])
        part = self.model.save_part(A)
        self.prefill(A, self.other, N_HALF)
        self.model.restore(B, self.model.save(A))
        if self.model.shape.memory.can_trim:
            self.model.drop(B, N_HALF)
        else:
            self.model.rewind(B, part, N_HALF)
        return self.finish(B)

    def run(self, path: Callable[[], Logits]) -> Logits:
        logits = path()
        for seq_id in (A, B, C):
            self.model.drop(seq_id, 0)
        return logits


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35", "mamba2"])
def test_every_path_leads_to_the_same_state(
    tiny_path: Callable[[str], Path], name: str, kv_type: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ModelOptions(n_ctx=1024, n_seq=3, kv_type=kv_type, flash_attn="on")
    model = load_model(tiny_path(name), options)
    try:
        paths = Paths(model)
        cold = paths.run(paths.cold)

        def far(path: Callable[[], Logits]) -> float:
            return float(np.abs(paths.run(path) - cold).max())

        control = max(far(paths.in_small_chunks), far(paths.beside_another))
        found = {
            path.__name__: far(path)
            for path in (paths.restored, paths.forked, paths.cut_back, paths.carried)
        }
        unrelated = float(np.abs(paths.prefill(A, paths.other) - cold).max())
    finally:
        model.close()
    with capsys.disabled():
        told = ", ".join(f"{path} {difference:.2g}" for path, difference in found.items())
        print(f"\n{name} {kv_type}: {told}; control {control:.2g}, another prompt {unrelated:.2g}")  # noqa: T201
    assert max(found.values()) <= 2 * control + 0.01 * unrelated

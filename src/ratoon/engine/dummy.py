"""A model that repeats the last user message: boots the whole server with no weights."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence

import numpy as np

from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.chat.vocab import Special
from ratoon.engine.model import BadState, Chunk, Logits, ModelShape
from ratoon.errors import ModelError

_MARKS = ("<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ByteVocab:
    """One token per byte, and ChatML's two marks."""

    n_tokens = 256 + len(_MARKS)
    bos_id: int | None = None
    eos_id: int | None = 257
    adds_bos = False
    specials: Mapping[str, Special] = {
        mark: Special(id=256 + i, is_control=True) for i, mark in enumerate(_MARKS)
    }

    def is_end(self, token: int) -> bool:
        return token == self.eos_id

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else _MARKS[token - 256].encode()


class DummyModel:
    """Keeps the tokens of each sequence as its state and answers by looking at them."""

    name = "dummy"
    chat_template: str | None = _TEMPLATE

    def __init__(
        self,
        *,
        n_ctx: int = 1 << 20,
        n_seq: int = 64,
        n_batch: int = 2048,
        memory: MemoryKind = MemoryKind.FULL,
        row_s: float = 0.0,
    ) -> None:
        self.vocab = ByteVocab()
        self.shape = ModelShape(n_ctx, n_ctx, n_seq, n_batch, n_batch, memory, True, 4)
        self._row_s = row_s  # pretended seconds per row
        self._held: dict[SeqId, list[int]] = {}

    def is_end(self, token: int) -> bool:
        return self.vocab.is_end(token)

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        time.sleep(self._row_s * sum(len(chunk.tokens) for chunk in chunks))
        return [self._forward(chunk) for chunk in chunks]

    def _forward(self, chunk: Chunk) -> Logits | None:
        held = self._held.setdefault(chunk.seq_id, [])
        if len(held) != chunk.start:
            raise ModelError(f"rows start at {chunk.start}, the sequence ends at {len(held)}")
        held.extend(chunk.tokens)
        if not chunk.wants_logits:
            return None
        logits = np.zeros(self.vocab.n_tokens, np.float32)
        logits[self._next(held)] = 100.0
        return logits

    def _next(self, held: list[int]) -> int:
        start, end = 256, 257
        turn = len(held) - 1 - held[::-1].index(start) if start in held else -1
        done = held[turn + 1 + len(b"assistant\n") :]
        head = held[: max(turn, 0)]
        said = b"user\n"
        for i in range(len(head) - 1, -1, -1):
            if head[i] == start and bytes(t for t in head[i + 1 : i + 6] if t < 256) == said:
                message = head[i + 6 :]
                message = message[: message.index(end)] if end in message else message
                return message[len(done)] if len(done) < len(message) else end
        return end

    def copy(self, src: SeqId, dst: SeqId, n_tokens: int) -> None:
        self._held[dst] = self._held.get(src, [])[:n_tokens]

    def drop(self, seq_id: SeqId, n_keep: int) -> None:
        del self._held.setdefault(seq_id, [])[n_keep:]

    def save(self, seq_id: SeqId) -> memoryview:
        return memoryview(array("i", self._held.get(seq_id, [])).tobytes())

    def save_part(self, seq_id: SeqId) -> memoryview:
        return self.save(seq_id)

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        if len(data) % 4:
            raise BadState(f"a saved state of {len(data)} bytes was refused")
        self._held[seq_id] = list(memoryview(data).cast("i"))

    def rewind(self, seq_id: SeqId, data: memoryview, n_tokens: int) -> None:
        self.restore(seq_id, data)

    def close(self) -> None:
        self._held.clear()

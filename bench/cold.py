"""Replies of a model that computes every prompt from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.oracle import make_renderer
from ratoon import wire
from ratoon.cache.placement import SeqId
from ratoon.chat.render import Renderer
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Chunk, ModelShape
from ratoon.engine.options import ModelOptions


class ColdModel:
    """In exact mode, so that a server in exact mode must say the same."""

    def __init__(self, model: LlamaModel, renderer: Renderer) -> None:
        self._model = model
        self._renderer = renderer

    @classmethod
    @contextmanager
    def opened(cls, path: Path, n_ctx: int) -> Iterator[ColdModel]:
        options = ModelOptions(n_ctx=n_ctx, n_seq=1, n_threads=1, is_exact=True)
        model = load_model(path, options)
        try:
            yield cls(model, make_renderer(path, None))
        finally:
            model.close()

    @property
    def shape(self) -> ModelShape:
        return self._model.shape

    def reply(self, body: dict[str, Any]) -> str:
        """The greedy reply to a request without tools."""
        model, seq = self._model, SeqId(0)
        chunk = self._renderer.render(wire.MessagesRequest.model_validate(body)).tokens
        model.drop(seq, 0)
        start, output = 0, list[int]()
        while len(output) < body["max_tokens"]:
            (logits,) = model.forward([Chunk(seq, start, chunk, wants_logits=True)])
            assert logits is not None
            token = int(logits.argmax())
            if model.is_end(token):
                break
            output.append(token)
            start, chunk = start + len(chunk), [token]
        return b"".join(map(model.vocab.piece, output)).decode("utf-8", "replace")

"""An engine stepped by hand beside a model that only ever runs cold, to compare their logits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ratoon.cache.placement import SeqId
from ratoon.cache.prefix_cache import PrefixCache
from ratoon.disk.store import DiskStore
from ratoon.engine.engine import Engine, EngineConfig, cache_config
from ratoon.engine.events import Event, Failed
from ratoon.engine.llama import LlamaModel, load_model
from ratoon.engine.model import Chunk, Logits
from ratoon.engine.options import ModelOptions
from ratoon.engine.request import Request
from ratoon.engine.scheduler import Run

N_CTX = 160
OPTIONS = ModelOptions(n_ctx=N_CTX, n_seq=4, n_batch=64, n_ubatch=32, n_threads=1, is_exact=True)


class Recorder:
    """The model, remembering each row of logits that was sampled from, by request."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self.running: Callable[[], list[Run]] = list
        self.seen: dict[str, list[tuple[int, Logits]]] = {}
        self.n_rewinds = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def rewind(self, seq_id: SeqId, data: memoryview, n_tokens: int) -> None:
        self.n_rewinds += 1
        self._model.rewind(seq_id, data, n_tokens)

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        out = self._model.forward(chunks)
        owner = {run.lease.slot.seq_id: run.request.id for run in self.running()}
        for chunk, logits in zip(chunks, out, strict=True):
            if logits is not None:
                row = (chunk.start + len(chunk.tokens), logits.copy())
                self.seen.setdefault(owner[chunk.seq_id], []).append(row)
        return out


class Bench:
    """The engine and its twin; ``rng`` decides what is asked and what happens meanwhile."""

    def __init__(
        self,
        model: LlamaModel,
        cold: LlamaModel,
        rng: random.Random,
        n_longest: int = N_CTX - 12,
        store: DiskStore | None = None,
    ) -> None:
        self.cold, self.rng = cold, rng
        self.n_longest = n_longest  # tokens of a prompt
        self.known: list[list[int]] = []
        self.failures: list[Event] = []
        self.layers: Counter[str] = Counter()
        self.n_rows = 0
        self.now = 0.0
        self.ids = iter(range(10**9))
        self.open(model, store)

    def open(self, model: LlamaModel, store: DiskStore | None = None) -> None:
        """Begin with an engine that has computed nothing; what ``store`` has is there."""
        self.model = model
        self.recorder = Recorder(model)
        shape = model.shape
        host_bytes = 400 * shape.bytes_per_token + 6 * shape.state_bytes
        config = EngineConfig(host_bytes=host_bytes, prefill_chunk=7)
        limits = replace(
            cache_config(model, config, has_disk=store is not None),
            min_reuse=2,
            min_snapshot=2,
            max_tail=6,
            max_burden=8,
            park_s=0.5,
        )
        self.engine = Engine(
            self.recorder,  # type: ignore[arg-type]
            config,
            cache=PrefixCache(limits),
            clock=lambda: self.now,
            store=store,
        )
        self.recorder.running = lambda: self.engine.scheduler.running

    def prompt(self) -> list[int]:
        rng = self.rng
        vocab = self.model.vocab.n_tokens
        fresh = [rng.randrange(vocab) for _ in range(rng.randint(2, self.n_longest // 6))]
        if not self.known or rng.random() < 0.1:
            return fresh
        base = rng.choice(self.known)
        kind = rng.choice(["fork", "extend", "edit", "same"])
        if kind == "fork":
            return (base[: rng.randint(1, len(base))] + fresh)[: self.n_longest]
        if kind == "extend":
            return (base + fresh)[: self.n_longest]
        if kind == "edit":
            i = rng.randrange(len(base))
            return (base[:i] + fresh[:2] + base[i + 1 :])[: self.n_longest]
        return base[: self.n_longest]

    def ask(self, prompt: list[int]) -> None:
        """One request, to its end."""
        request = self.submit(prompt)
        self.drain()
        self.compare(request)

    def submit(self, prompt: list[int] | None = None) -> Request:
        prompt = prompt or self.prompt()
        marks = {self.rng.randrange(1, len(prompt) + 1) for _ in range(2)}
        request = Request(
            id=str(next(self.ids)),
            prompt=prompt,
            max_tokens=self.rng.randint(1, 5),
            emit=self.on_event,
            boundaries=tuple(sorted(marks)),
        )
        self.engine.submit(request)
        return request

    def on_event(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.failures.append(event)

    def step(self) -> None:
        self.now += self.rng.random() * 0.3
        self.engine.step()

    def drain(self) -> None:
        self.step()
        while not self.engine.scheduler.is_idle:
            self.step()

    def disturb(self) -> None:
        """Anything that may happen to states between steps."""
        engine, rng = self.engine, self.rng
        kind = rng.choice(["offload", "evict", "preempt", "cancel", "nothing"])
        if kind == "offload":
            engine.cache.offload_all(self.now)
        elif kind == "evict":
            nodes = [n for n in engine.cache.tree.root.subtree() if n.snapshot is not None]
            if nodes:
                snapshot = rng.choice(nodes).snapshot
                assert snapshot is not None
                engine.cache.forget(snapshot)
        elif kind == "preempt" and engine.scheduler.running:
            engine.scheduler._preempt(rng.choice(engine.scheduler.running), self.now)
        elif kind == "cancel" and engine.scheduler.running:
            engine.cancel(rng.choice(engine.scheduler.running).request.id)

    def script(self) -> None:
        """A few requests, side by side or in turn, with accidents in between."""
        requests: list[Request] = []
        for _ in range(self.rng.randint(1, 4)):
            requests.append(self.submit())
            for _ in range(self.rng.randint(0, 4)):
                self.step()
                if self.rng.random() < 0.3:
                    self.disturb()
        self.drain()
        self.engine.cache.check()
        for request in requests:
            self.compare(request)
            self.known.append(request.prompt + request.output)
        del self.known[:-12]

    def compare(self, request: Request) -> None:
        rows = self.recorder.seen.pop(request.id, [])
        self.layers[request.layer] += 1
        if not rows:
            return  # cancelled before its first token
        tokens = request.prompt + request.output
        cold = cold_logits(self.cold, tokens, [n for n, _ in rows])
        for n, logits in rows:
            assert np.array_equal(cold[n], logits), f"{request.layer}: {n} of {len(tokens)} tokens"
        self.n_rows += len(rows)


def cold_logits(model: LlamaModel, tokens: list[int], ends: Sequence[int]) -> dict[int, Logits]:
    """Logits after each of the prefixes that end at ``ends``, each from a prefill of its own."""
    seq = SeqId(0)
    found = {}
    for end in ends:
        model.drop(seq, 0)
        (logits,) = model.forward_rows([Chunk(seq, 0, tokens[:end], wants_logits=True)])
        assert logits is not None
        found[end] = logits.copy()
    return found


def open_pair(path: Path, n_threads: int) -> tuple[LlamaModel, LlamaModel]:
    return load_model(path, replace(OPTIONS, n_threads=n_threads)), load_cold(path, n_threads)


def load_cold(path: Path, n_threads: int = 1) -> LlamaModel:
    """The twin: one sequence, and prompts in one piece."""
    options = replace(OPTIONS, n_seq=1, n_batch=512, n_ubatch=512, n_threads=n_threads)
    return load_model(path, options)

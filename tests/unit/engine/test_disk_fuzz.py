"""Random lives of engines on one folder, with a model that knows what it was told and faults in
everything that may fail: no reply may be wrong, nothing may hang, nothing may be left behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import queue
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.disk.fingerprint import Fingerprint
from ratoon.disk.store import DiskConfig, DiskStore
from ratoon.engine.dummy import DummyModel
from ratoon.engine.engine import Engine, EngineConfig
from ratoon.engine.events import Event, Failed, Finished, FinishReason, Token
from ratoon.engine.model import BadState, Chunk, Logits, ModelShape, NoRoom
from ratoon.engine.request import Priority, Request
from ratoon.errors import ModelError, Overloaded, RatoonError

WAIT_S = 60.0
WINDOW = 16
END = 257
SHAPES: dict[MemoryKind, dict[str, int]] = {
    MemoryKind.FULL: {"bytes_per_token": 8},
    MemoryKind.WINDOW: {"bytes_per_token": 8, "state_bytes": 60, "window": WINDOW, "save_step": 8},
    MemoryKind.RECURRENT: {"bytes_per_token": 0, "state_bytes": 900},
    MemoryKind.HYBRID: {"bytes_per_token": 8, "state_bytes": 60},
}


def next_token(tokens: Sequence[int]) -> int:
    """Depends on every token before it."""
    number = hash(tuple(tokens))
    return END if number % 30 == 0 else number // 30 % 5


class HashModel(DummyModel):
    """Holds tokens as its state, refuses what its memory refuses, and fails as it is told to.

    Using a sequence in a way that would give wrong tokens is noted in ``misuses``.
    """

    def __init__(self, kind: MemoryKind, rng: random.Random, n_cells: int, n_seq: int) -> None:
        super().__init__(memory=kind)
        n_ctx = rng.randint(200, n_cells) if kind.has_cells else rng.randint(200, 400)
        self.shape = ModelShape(
            n_ctx, n_cells, n_seq, 64, rng.choice([16, 64]), kind, True, **SHAPES[kind]
        )
        self.rng = rng
        self.fault_rate = 0.02
        self.misuses: list[str] = []
        self._to_rewind: set[SeqId] = set()

    def _fails(self, share: float = 1.0) -> bool:
        return self.rng.random() < self.fault_rate * share

    def _check(self, is_right: bool, what: str) -> None:
        if not is_right:
            self.misuses.append(what)

    def _is_own(self, n: int) -> bool:
        past = n - self.shape.window
        return past <= 0 or past % self.shape.save_step == 0

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        if self._fails(0.5):
            raise NoRoom("no room, it is said")
        if self._fails(0.2):
            for chunk in chunks:
                self._held[chunk.seq_id] = [99] * self.rng.randint(1, 50)
            raise ModelError("broken, it is said")
        for chunk in chunks:
            held = self._held.get(chunk.seq_id, [])
            self._check(len(held) == chunk.start, f"rows at {chunk.start}, {len(held)} are held")
            self._check(chunk.seq_id not in self._to_rewind, "rows on what must be rewound")
        return super().forward(chunks)

    def _next(self, held: list[int]) -> int:
        return next_token(held)

    def _hold(self, seq_id: SeqId, tokens: list[int], n: int) -> None:
        self._check(not self._held.get(seq_id), "a sequence that is not empty is filled")
        self._held[seq_id] = tokens[:n]
        if not self.shape.memory.can_trim and not (n == len(tokens) and self._is_own(n)):
            self._to_rewind.add(seq_id)

    def copy(self, src: SeqId, dst: SeqId, n_tokens: int) -> None:
        held = list(self._held.get(src, []))  # none: lost, and so is the copy
        self._check(not held or n_tokens <= len(held), "more is copied than is there")
        self._hold(dst, held, n_tokens)

    def drop(self, seq_id: SeqId, n_keep: int) -> None:
        held = self._held.get(seq_id, [])
        if n_keep and not self.shape.memory.can_trim and seq_id not in self._to_rewind:
            self._check(n_keep == len(held), "cut, of memory that can't be")
        if not n_keep:
            self._to_rewind.discard(seq_id)
        super().drop(seq_id, n_keep)

    def save(self, seq_id: SeqId) -> memoryview:
        return self._pack(1, seq_id)

    def save_part(self, seq_id: SeqId) -> memoryview:
        self._check(self._is_own(len(self._held.get(seq_id, []))), "a part between two steps")
        return self._pack(2, seq_id)

    def _pack(self, kind: int, seq_id: SeqId) -> memoryview:
        self._check(seq_id not in self._to_rewind, "saved before it was rewound")
        return memoryview(array("i", [kind, *self._held.get(seq_id, [])])).cast("B")

    def _unpack(self, kind: int, seq_id: SeqId, data: memoryview) -> list[int]:
        if self._fails(4.0):
            self._held.pop(seq_id, None)
            self._to_rewind.discard(seq_id)
            raise BadState("refused, it is said")
        found, *tokens = array("i", bytes(data))
        self._check(found == kind, "a part for a whole, or a whole for a part")
        return tokens

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        self._check(not self._held.get(seq_id), "a sequence that is not empty is restored")
        tokens = self._unpack(1, seq_id, data)
        self._hold(seq_id, tokens, len(tokens))

    def rewind(self, seq_id: SeqId, data: memoryview, n_tokens: int) -> None:
        tokens = self._unpack(2, seq_id, data)
        self._check(len(tokens) == n_tokens, "a part of another length")
        self._check(self._held.get(seq_id, [])[:n_tokens] == tokens, "a part of other tokens")
        self._held[seq_id] = tokens
        self._to_rewind.discard(seq_id)


class CheckedEngine(Engine):
    """Looks at its books after every step."""

    def step(self) -> None:
        super().step()
        with self._lock:
            self.cache.check()


class FaultyDisk:
    """Gets between a store and its files: delays, errors, and files that others change."""

    def __init__(self, store: DiskStore, rng: random.Random) -> None:
        self.rate = 0.1
        self._rng = rng
        self._files = store._files
        for name in ("load", "write", "remove", "evict", "sizes"):
            setattr(self._files, name, self._faulty(getattr(self._files, name)))

    def _faulty(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            luck = self._rng.random() / self.rate if self.rate else 9.0
            if luck < 0.3:
                raise OSError(self._rng.choice([errno.ENOSPC, errno.EIO]), "it is said")
            if luck < 0.35:
                raise MemoryError("it is said")
            if luck < 1.0:
                time.sleep(self._rng.random() * 0.05)
            return real(*args, **options)

        return call

    def meddle(self) -> None:
        """What another process, or a bad disk, may do to a file."""
        files = list(self._files.folder.glob("*.state"))
        if files:
            with contextlib.suppress(FileNotFoundError):  # evicted meanwhile
                self._spoil(self._rng.choice(files), files)

    def _spoil(self, file: Path, files: list[Path]) -> None:
        data = bytearray(file.read_bytes())
        new = file.with_name(f"{threading.get_ident()}.new")
        match self._rng.randrange(4):
            case 0:
                file.unlink()
                return
            case 1:
                data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
            case 2:
                del data[self._rng.randint(1, len(data)) :]
            case 3:
                data = bytearray(self._rng.choice(files).read_bytes())
        new.write_bytes(data)
        new.replace(file)  # what is mapped stays


@dataclass(eq=False)
class Ask:
    """A request, and what came of it."""

    request: Request
    events: queue.Queue[Event] = field(default_factory=queue.Queue)
    is_cancelled: bool = False

    def reply(self) -> tuple[list[int], FinishReason | RatoonError]:
        tokens: list[int] = []
        while True:
            event = self.events.get(timeout=WAIT_S)
            match event:
                case Token():
                    tokens.append(event.token)
                case Finished():
                    return tokens, event.reason
                case Failed():
                    return tokens, event.error


class Life:
    """One engine on the folder, from start to stop."""

    def __init__(self, folder: Path, kind: MemoryKind, rng: random.Random, known: list[list[int]]):
        self.rng, self.known = rng, known
        self.model = HashModel(kind, rng, rng.choice([400, 700]), rng.choice([2, 4, 6]))
        n_bytes = rng.choice([4_000, 12_000, 100_000])
        limits = DiskConfig(n_bytes, rng.choice([3_000, 1 << 20]), retry_s=0.05)
        store = DiskStore(folder, Fingerprint("m", "b", "f16", "off", kind.value), limits)
        self.disk = FaultyDisk(store, rng)
        config = EngineConfig(
            host_bytes=rng.choice([1_500, 4_000, 20_000]),
            prefill_chunk=16,
            max_queue=30,
            park_s=rng.choice([0.0, 0.05]),
            flush_s=rng.choice([0.0, 0.5]),
        )
        self.engine = CheckedEngine(self.model, config, store=store)
        self.store = store
        self.engine.start()
        self.asks: list[Ask] = []

    def prompt(self) -> list[int]:
        """Grown from, or left, some way into what was said before."""
        rng, prompt = self.rng, list[int]()
        if self.known and rng.random() < 0.9:
            prompt = rng.choice(self.known[-12:])
            if rng.random() < 0.5:
                prompt = prompt[: rng.randrange(len(prompt) + 1)]
        prompt = [*prompt, *[rng.randrange(5) for _ in range(rng.randint(1, 60))]]
        return prompt[: self.engine.n_ctx - 1] if rng.random() < 0.9 else prompt[-50:]

    def ask(self, i: int) -> None:
        prompt, rng = self.prompt(), self.rng
        marks = tuple(sorted(rng.randrange(1, len(prompt) + 1) for _ in range(rng.randrange(3))))
        events: queue.Queue[Event] = queue.Queue()
        request = Request(
            f"r{i}",
            prompt,
            rng.choice([0, 1, 5, 40]),
            emit=events.put,
            boundaries=marks,
            priority=rng.choice(list(Priority)),
        )
        try:
            self.engine.submit(request)
        except Overloaded:
            return
        self.asks.append(Ask(request, events))

    def run(self, n: int) -> None:
        for i in range(n):
            self.ask(i)
            if self.rng.random() < 0.1:
                ask = self.rng.choice(self.asks)
                ask.is_cancelled = True
                self.engine.cancel(ask.request.id)
            if self.rng.random() < 0.1:
                self.disk.meddle()
            if self.rng.random() < 0.1:
                self.engine.inspect()
                self.engine.match_length(self.prompt())
            if self.rng.random() < 0.5:
                self.settle()
        if self.rng.random() < 0.7:
            while self.asks:
                self.settle()
        self.engine.stop(WAIT_S)
        while self.asks:
            self.settle(is_stopped=True)

    def settle(self, *, is_stopped: bool = False) -> None:
        """Wait for one reply, and check it."""
        if not self.asks:
            return
        ask = self.asks.pop(self.rng.randrange(len(self.asks)))
        request = ask.request
        tokens, end = ask.reply()
        said = list(request.prompt)
        for token in tokens:
            assert token == next_token(said), "a wrong token"
            said.append(token)
        match end:
            case FinishReason.CANCELLED:
                assert ask.is_cancelled
            case FinishReason.STOP:
                assert next_token(said) == END
            case FinishReason.LENGTH:
                assert len(tokens) == request.max_tokens
            case FinishReason.CONTEXT:
                assert len(said) == self.engine.n_ctx
            case RatoonError():
                assert is_stopped or request.n_retries or "KV cache is full" in str(end), end
        self.known.append(said)


def mapped(folder: Path) -> int:
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sum(str(folder) in line for line in maps.splitlines())


def live(folder: Path, kind: MemoryKind, seed: int, n_lives: int = 6, n_asks: int = 20) -> None:
    """Some lives one after the other, now and then two at once."""
    rng, known = random.Random(seed), list[list[int]]()
    before = set(threading.enumerate())
    for _ in range(n_lives):
        lives = [Life(folder, kind, rng, known) for _ in range(rng.choice([1, 1, 2]))]
        with ThreadPoolExecutor(len(lives)) as pool:
            list(pool.map(lambda life: life.run(n_asks), lives))
        for life in lives:
            assert not life.model.misuses, life.model.misuses[0]
            assert len(life.engine.cache.pool.leased) == 0
        lives.clear()
        del life
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive(), thread.name


class Messages(logging.Handler):
    """Keeps texts only: a record's exception has frames, and they may hold what was read."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@pytest.mark.parametrize("kind", list(MemoryKind))
def test_random_lives(
    tmp_path: Path,
    kind: MemoryKind,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("MAPPED_S", "LATE_S", "SETTLED_S", "BUSY_S"):
        monkeypatch.setattr(f"ratoon.cache.disk.{name}", 0.03)
    monkeypatch.setattr("ratoon.cache.prefix_cache.COMPACT_SLACK", 20)
    monkeypatch.setattr("ratoon.engine.scheduler.TIDY_S", 0.0)
    heard = Messages(logging.ERROR)
    logger = logging.getLogger("ratoon")
    monkeypatch.setattr(logger, "handlers", [heard])
    monkeypatch.setattr(logger, "propagate", False)
    for seed in range(2):
        live(tmp_path / str(seed), kind, seed)
    assert not [said for said in heard.said if "step failed" in said]
    gc.collect()
    assert mapped(tmp_path) == 0

"""Moves states between the cache and the disk. Used on the engine thread only."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from ratoon.cache.disk import Keep
from ratoon.cache.prefix_cache import PrefixCache
from ratoon.disk.format import Kind, State
from ratoon.disk.store import DiskStore
from ratoon.engine.model import Model

log = logging.getLogger("ratoon.engine")

MAX_KNOWN_TOKENS = 4_000_000  # a known token takes about 40 bytes of memory
LOOK_S = 0.1  # between two looks at what is due or was read while nothing runs

Read = tuple[str, memoryview | None]


@dataclass(eq=False, slots=True)
class Keeper:
    """The store's side of the cache's disk tier. ``lock`` guards the cache."""

    store: DiskStore
    cache: PrefixCache
    model: Model
    lock: threading.Lock
    clock: Callable[[], float]
    _read: queue.SimpleQueue[Read] = field(default_factory=queue.SimpleQueue)

    def open(self) -> None:
        """Tell the cache what the store has, last used first."""
        n_known, now = 0, self.clock()
        with self.lock:
            for entry in self.store.entries():
                n_known += len(entry.tokens)
                if n_known > MAX_KNOWN_TOKENS:
                    break
                self.cache.disk.know(
                    entry.tokens,
                    entry.key,
                    entry.n_bytes,
                    is_part=entry.kind is Kind.PARTIAL,
                    n_hits=entry.n_hits,
                    used_s=now - entry.age_s,
                )
            n = len(self.cache.disk)
        if n:
            log.info("%d states are on disk", n)

    @property
    def pause_s(self) -> float | None:
        """How long the engine may sleep; ``None``: until it is called."""
        disk = self.cache.disk
        return LOOK_S if disk.n_due or disk.has_read else None

    def collect(self) -> None:
        """Take in what was read, and what is gone; let go what nobody came for."""
        lost, arrived = self.store.take_lost(), list[tuple[str, memoryview]]()
        while not self._read.empty():
            key, data = self._read.get()
            if data is None:
                lost.append(key)
            else:
                arrived.append((key, data))
        now = self.clock()
        with self.lock:
            self.cache.disk.lose(lost)
            for key, data in arrived:
                self.cache.disk.arrive(key, data, now)
            self.cache.disk.expire(now)

    def run_errands(self) -> None:
        """Pass on what the cache wants of files."""
        with self.lock:
            errands = self.cache.disk.take_errands()
        for key in errands.read:
            self.store.prefetch(key).add_done_callback(self._on_read(key))
        for key in errands.used:
            self.store.touch(key)
        for key in errands.bad:
            self.store.forget(key)

    def _on_read(self, key: str) -> Callable[[Future[memoryview | None]], None]:
        def put(read: Future[memoryview | None]) -> None:
            self._read.put((key, read.result()))

        return put

    def keep(self, *, is_idle: bool) -> None:
        """Have the next state written that is worth it, if the writer has nothing else to do."""
        if not self.cache.disk.n_due or not self.store.is_ready:
            return
        with self.lock:
            keep = self.cache.disk.next_keep(self.clock(), is_idle=is_idle)
        if keep is not None:
            self._put(keep, 0.0)

    def _put(self, keep: Keep, wait_s: float) -> None:
        snapshot = keep.snapshot
        if snapshot.n_bytes > self.store.config.max_bytes:
            return  # it would be copied in vain
        if keep.seq_id is not None:
            snapshot.data = self.model.save(keep.seq_id)
            snapshot.n_bytes = len(snapshot.data)
        assert snapshot.data is not None
        kind = Kind.PARTIAL if snapshot.is_part else Kind.WHOLE
        state = State(keep.tokens, snapshot.data, kind, keep.n_spared)
        key = self.store.put(state, replaces=keep.replaces, wait_s=wait_s)
        if key is not None:
            with self.lock:
                self.cache.disk.keep(keep, key, self.clock())

    def close(self, timeout_s: float) -> None:
        """Write what is worth keeping, as far as time allows, and close the store."""
        try:
            self._put_all(time.monotonic() + timeout_s)
        except Exception:  # what could not be kept is no reason to lose what is being written
            log.exception("keeping states at the end failed")
        finally:
            self.store.close()

    def _put_all(self, until: float) -> None:
        with self.lock:
            keeps = self.cache.disk.all_keeps(
                self.cache.pool.parked, self.cache.host.nodes, self.clock()
            )
        for keep in keeps:
            left_s = until - time.monotonic()
            if left_s <= 0:
                break
            self._put(keep, left_s)
        self.store.flush(max(0.0, until - time.monotonic()))

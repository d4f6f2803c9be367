"""Random request lives against a device that remembers which tokens each sequence really holds."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field

import pytest

from ratoon.cache.config import CacheConfig
from ratoon.cache.disk import Keep
from ratoon.cache.eviction import worth
from ratoon.cache.lease import Full, Lease, Wait
from ratoon.cache.placement import (
    ALL,
    CacheOp,
    Copy,
    Drop,
    MemoryKind,
    Restore,
    Rewind,
    Save,
    SeqId,
    Snapshot,
)
from ratoon.cache.prefix_cache import PrefixCache


class FakeDevice:
    """Sequences as token lists; refuses what the memory kind refuses.

    A state that is not its own (of memory that can't be cut: more than what was asked for, or not
    at a step) has to be rewound before anything else happens to it.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self.cache = cache
        self.config = cache.config
        self.held: dict[SeqId, list[int]] = {}
        self.saved: dict[Snapshot, list[int]] = {}
        self.to_rewind: set[SeqId] = set()
        self.now = 0.0

    def execute(self) -> None:
        for op in self.cache.take_ops():
            self._one(op)
        self.cache.disk.release()
        self.cache.disk.expire(self.now)
        assert not self.to_rewind

    def _one(self, op: CacheOp) -> None:
        memory = self.config.memory
        match op:
            case Copy():
                self._hold(op.dst, self.held[op.src], op.n_tokens)
            case Drop():
                held = self.held.setdefault(op.seq_id, [])
                assert memory.can_trim or op.n_keep in (0, len(held))
                del held[op.n_keep :]
            case Save():
                held = self.held[op.seq_id]
                assert len(held) == op.snapshot.n_tokens
                assert op.seq_id not in self.to_rewind
                assert not op.snapshot.is_part or self._is_own(len(held))
                self.saved[op.snapshot] = list(held)
                n_bytes = self.config.n_bytes(len(held), is_part=op.snapshot.is_part)
                self.cache.fill(op.snapshot, memoryview(bytes(n_bytes)), self.now)
            case Restore():
                assert not op.snapshot.is_part
                self._hold(op.seq_id, self._content(op.snapshot), op.n_tokens)
            case Rewind():
                tokens = self._content(op.snapshot)
                assert op.snapshot.is_part
                assert self.held[op.seq_id][: len(tokens)] == tokens
                self.held[op.seq_id] = list(tokens)
                self.to_rewind.discard(op.seq_id)

    def _content(self, snapshot: Snapshot) -> list[int]:
        """What was saved here, or what the file says that it was mapped from."""
        assert snapshot.data is not None
        return self.saved.get(snapshot) or list(snapshot.data.cast("i"))

    def _hold(self, seq_id: SeqId, tokens: list[int], n: int) -> None:
        memory = self.config.memory
        assert not self.held.get(seq_id)
        assert n <= len(tokens)
        self.held[seq_id] = tokens[:n]
        if not memory.can_trim and not (n == len(tokens) and self._is_own(n)):
            assert memory.has_part
            self.to_rewind.add(seq_id)

    def _is_own(self, n: int) -> bool:
        return self.config.floor(n) == n


def config(memory: MemoryKind = MemoryKind.FULL, **changes: object) -> CacheConfig:
    base: dict[str, object] = {
        "n_ctx": 200,
        "n_cells": 400,
        "n_seq": 6,
        "n_ubatch": 16,
        "memory": memory,
        "is_unified": True,
        "bytes_per_token": 4,
        "host_bytes": 2000,
        "min_reuse": 4,
        "min_snapshot": 4,
        "max_tail": 8,
        "max_burden": 10,
        "park_s": 5.0,
    }
    return CacheConfig(**(base | changes))  # type: ignore[arg-type]


KINDS: dict[str, dict[str, object]] = {
    "full": {"memory": MemoryKind.FULL},
    "window": {"memory": MemoryKind.WINDOW, "window": 16, "state_bytes": 60},
    "window_in_steps": {
        "memory": MemoryKind.WINDOW,
        "window": 16,
        "state_bytes": 60,
        "save_step": 8,
    },
    "recurrent": {"memory": MemoryKind.RECURRENT, "bytes_per_token": 0, "state_bytes": 100},
    "hybrid": {"memory": MemoryKind.HYBRID, "state_bytes": 60},
}


@dataclass
class FakeDisk:
    """Files that say which tokens their state is of. Some can't be read, some are lost."""

    rng: random.Random
    files: dict[str, tuple[list[int], bool]] = field(default_factory=dict)
    reading: list[str] = field(default_factory=list)
    n_read: int = 0

    def work(self, cache: PrefixCache, device: FakeDevice, now: float) -> None:
        """One look of the engine at the disk."""
        errands = cache.disk.take_errands()
        for key in errands.bad:
            self.files.pop(key)
        self.reading += errands.read
        while self.reading and self.rng.random() < 0.7:
            self._read(cache, self.reading.pop(), now)
        keep = cache.disk.next_keep(now, is_idle=self.rng.random() < 0.5)
        if keep is not None:
            self._write(cache, device, keep, now)

    def _read(self, cache: PrefixCache, key: str, now: float) -> None:
        if key in self.files and self.rng.random() < 0.9:
            self.n_read += 1
            tokens, _ = self.files[key]
            cache.disk.arrive(key, memoryview(array("i", tokens)).cast("B"), now)
        else:
            self.files.pop(key, None)
            cache.disk.lose([key])

    def _write(self, cache: PrefixCache, device: FakeDevice, keep: Keep, now: float) -> None:
        snapshot = keep.snapshot
        if keep.seq_id is not None:
            assert device.held[keep.seq_id] == keep.tokens
        else:
            assert device.saved[snapshot] == keep.tokens
        assert len(keep.tokens) == snapshot.n_tokens == keep.node.n_tokens
        key = f"{keep.tokens} {snapshot.is_part}"
        cache.disk.keep(keep, key, now)
        if self.rng.random() < 0.1:
            cache.disk.lose([key])
            return
        for old in keep.replaces:
            self.files.pop(old, None)
        cache.disk.lose(keep.replaces)
        self.files[key] = (keep.tokens, snapshot.is_part)

    def lose_one(self, cache: PrefixCache) -> None:
        if self.files:
            key = self.rng.choice(sorted(self.files))
            del self.files[key]
            cache.disk.lose([key])

    def tell(self, cache: PrefixCache, now: float) -> None:
        """A server starts and learns what there is."""
        self.reading.clear()
        for key, (tokens, is_part) in self.files.items():
            n_bytes = 4 * len(tokens)
            cache.disk.know(tokens, key, n_bytes, is_part=is_part, n_hits=0, used_s=now)


@dataclass
class World:
    """Running requests, the cache, the device, and every token list ever asked for."""

    cache: PrefixCache
    device: FakeDevice
    rng: random.Random
    disk: FakeDisk
    running: list[tuple[Lease, list[int], int]] = field(default_factory=list)
    known: list[list[int]] = field(default_factory=list)
    now: float = 0.0

    def settle(self) -> None:
        self.device.now = self.now
        self.device.execute()
        self.cache.check()
        for lease, tokens, _ in self.running:
            held = self.device.held.get(lease.slot.seq_id, [])
            assert held == tokens[: lease.slot.n_tokens]
        for slot in self.cache.pool.parked:
            held = self.device.held[slot.seq_id]
            assert held == slot.node.tokens

    def prompt(self) -> list[int]:
        rng, head = self.rng, list[int]()
        if self.known and rng.random() < 0.85:
            other = rng.choice(self.known)
            head = other[: rng.randint(0, len(other))]
        tail = [rng.randint(0, 50) for _ in range(rng.randint(1, 40))]
        return (head + tail)[:190]

    def arrive(self) -> None:
        tokens = self.prompt()
        marks = tuple(sorted(self.rng.sample(range(1, len(tokens) + 1), min(3, len(tokens)))))
        n_lasting = self.rng.choice((ALL, self.rng.choice(marks)))
        got = self.cache.acquire(tokens, marks, self.now, n_lasting)
        if isinstance(got, Full):
            assert self.running, "an idle device always has room"
        elif isinstance(got, Wait):
            self.disk.reading += self.cache.disk.take_errands().read
            is_read = bool(self.disk.reading)
            assert self.running or is_read, "someone must be computing what is waited for"
        else:
            assert got.n_cached < len(tokens)
            self.running.append((got, list(tokens), len(tokens)))
            self.known.append(tokens)

    def work(self) -> None:
        parts: list[tuple[Lease, int]] = []
        for lease, tokens, n_prompt in self.running:
            if lease.slot.n_tokens >= n_prompt and len(tokens) < 199:
                tokens.append(self.rng.randint(0, 50))
            n = min(len(tokens) - lease.slot.n_tokens, self.rng.randint(1, 30))
            ahead = [cut - lease.slot.n_tokens for cut in lease.cuts if cut > lease.slot.n_tokens]
            n = min([n, *ahead])
            if n and self.cache.make_cells(n + sum(m for _, m in parts), self.now):
                parts.append((lease, n))
        self.device.execute()
        for lease, n in parts:
            tokens = next(t for each, t, _ in self.running if each is lease)
            held = self.device.held.setdefault(lease.slot.seq_id, [])
            assert len(held) == lease.slot.n_tokens
            held.extend(tokens[len(held) : len(held) + n])
        self.cache.advance(parts)
        for lease, tokens, _ in self.running:
            self.cache.checkpoint(lease, tokens, self.now)

    def restart(self) -> PrefixCache:
        self.running.clear()
        self.cache = PrefixCache(self.cache.config)
        self.device = FakeDevice(self.cache)
        if self.cache.config.has_disk:
            self.disk.tell(self.cache, self.now)
        return self.cache

    def leave(self, how: str) -> None:
        if not self.running:
            return
        lease, tokens, _ = self.running.pop(self.rng.randrange(len(self.running)))
        if how == "discard":
            self.cache.discard(lease)
        elif how == "preempt":
            self.cache.preempt(lease, tokens, self.now)
        else:
            self.cache.release(lease, tokens, self.now)
            self.known.append(tokens[:])


ACTIONS = {
    "arrive": 4,
    "work": 6,
    "release": 2,
    "preempt": 0.5,
    "discard": 0.3,
    "tidy": 1,
    "clear": 0.1,
    "disk": 4,
    "lose": 0.1,
    "restart": 0.05,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_unified", [True, False])
@pytest.mark.parametrize("n_cells", [400, 210])
@pytest.mark.parametrize("seed", range(15))
def test_a_lease_always_holds_its_own_tokens(
    kind: str, is_unified: bool, n_cells: int, seed: int
) -> None:
    limits = {"is_unified": is_unified, "n_cells": n_cells, "host_bytes": 5 * n_cells}
    limits["has_disk"] = seed % 2 == 1
    cache = PrefixCache(config(**(KINDS[kind] | limits)))  # type: ignore[arg-type]
    rng = random.Random(seed)
    world = World(cache, FakeDevice(cache), rng, FakeDisk(rng))
    for _ in range(300):
        world.now += world.rng.random()
        action = world.rng.choices([*ACTIONS], [*ACTIONS.values()])[0]
        if action == "arrive":
            world.arrive()
        elif action == "work":
            world.work()
        elif action == "tidy":
            cache.tidy(world.now)
        elif action == "clear":
            cache.offload_all(world.now)
        elif action == "disk":
            world.disk.work(cache, world.device, world.now)
        elif action == "lose":
            world.disk.lose_one(cache)
        elif action == "restart":
            cache = world.restart()
        else:
            world.leave(action)
        world.settle()
    while world.running:
        world.leave("release")
        world.settle()
    assert not cache.pool.leased
    assert cache.host.n_bytes <= 5 * n_cells


def finish(cache: PrefixCache, lease: Lease, tokens: list[int], now: float = 0.0) -> None:
    cache.advance([(lease, len(tokens) - lease.slot.n_tokens)])
    cache.release(lease, tokens, now)


def acquire(cache: PrefixCache, tokens: list[int], now: float = 0.0) -> Lease:
    lease = cache.acquire(tokens, (), now)
    assert isinstance(lease, Lease)
    return lease


def test_an_extension_continues_in_place() -> None:
    cache = PrefixCache(config())
    tokens = list(range(50))
    lease = acquire(cache, tokens)
    finish(cache, lease, [*tokens, 90, 91])
    cache.take_ops()
    again = acquire(cache, [*tokens, 90, 91, 92, 93])
    assert (again.n_cached, again.layer) == (52, "device")
    assert again.slot.seq_id == lease.slot.seq_id
    assert cache.take_ops() == ()


def test_a_sibling_forks_from_a_running_request() -> None:
    cache = PrefixCache(config())
    leader = acquire(cache, [*range(50), 100])
    cache.advance([(leader, 51)])
    sibling = acquire(cache, [*range(50), 200, 201])
    assert sibling.n_cached == 50
    assert cache.take_ops() == (Copy(leader.slot.seq_id, sibling.slot.seq_id, 50),)
    assert cache.cells is not None
    assert cache.cells.n_used == 51


def test_siblings_that_arrive_together_wait_for_the_first() -> None:
    cache = PrefixCache(config())
    leader = acquire(cache, [*range(50), 100])
    assert cache.acquire([*range(50), 200], (), 0.0) == Wait(50, leader.slot.seq_id)
    cache.advance([(leader, 50)])
    assert acquire(cache, [*range(50), 200]).n_cached == 50


def test_nobody_waits_for_a_gain_that_is_not_worth_it() -> None:
    cache = PrefixCache(config(min_reuse=16))
    acquire(cache, [*range(10), 100])
    assert isinstance(cache.acquire([*range(10), 200], (), 0.0), Lease)


def test_a_recurrent_leader_is_cut_where_the_sibling_leaves() -> None:
    cache = PrefixCache(config(MemoryKind.RECURRENT))
    leader = acquire(cache, [*range(50), 100, 101])
    assert isinstance(cache.acquire([*range(50), 200], (), 0.0), Wait)
    assert leader.cuts == {50, 51}
    assert leader.saves == {50, 51}


def run_through(
    cache: PrefixCache,
    device: FakeDevice,
    tokens: list[int],
    marks: set[int],
    n_lasting: int = ALL,
) -> None:
    """A request that is computed, saved at its marks, and parked at its end."""
    lease = cache.acquire(tokens, tuple(marks), 0.0, n_lasting)
    assert isinstance(lease, Lease)
    device.execute()
    for n in sorted({n for n in lease.cuts if n > lease.slot.n_tokens} | {len(tokens)}):
        cache.advance([(lease, n - lease.slot.n_tokens)])
        device.held[lease.slot.seq_id] = tokens[:n]
        cache.checkpoint(lease, tokens, 0.0)
        device.execute()
    cache.release(lease, tokens, 0.0)
    cache.check()


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_part_takes_a_longer_state_back_to_where_it_was_saved(kind: str) -> None:
    cache = PrefixCache(config(**KINDS[kind]))  # type: ignore[arg-type]
    device = FakeDevice(cache)
    run_through(cache, device, list(range(100)), {40, 60})
    # three parts, for the end of the prompt is one, and no whole state
    assert cache.host.n_bytes == 3 * cache.config.n_bytes(0, is_part=True)
    fork = acquire(cache, [*range(45), 7])
    assert (fork.n_cached, fork.layer) == (40, "device")
    device.execute()
    assert device.held[fork.slot.seq_id] == list(range(40))
    cache.offload_all(0.0)
    device.execute()
    cache.discard(fork)
    restored = acquire(cache, [*range(70), 7])
    assert (restored.n_cached, restored.layer) == (60, "host")
    device.execute()
    assert device.held[restored.slot.seq_id] == list(range(60))


def test_a_part_without_a_carrier_is_not_used_and_the_first_to_go() -> None:
    cache = PrefixCache(config(**KINDS["hybrid"]))  # type: ignore[arg-type]
    device = FakeDevice(cache)
    run_through(cache, device, list(range(100)), {40})
    (slot,) = cache.pool.parked
    cache.discard_parked({slot.seq_id})
    device.execute()
    assert acquire(cache, [*range(50), 7]).n_cached == 0
    (node,) = (node for node in cache.tree.root.subtree() if node.n_tokens == 40)
    assert worth(node, 60, 0.0, MemoryKind.HYBRID, is_part=True) == 0


def test_of_a_state_that_another_carries_only_the_part_goes_to_the_host() -> None:
    cache = PrefixCache(config(**KINDS["hybrid"]))  # type: ignore[arg-type]
    short = acquire(cache, list(range(60)))
    cache.advance([(short, 60)])
    long = acquire(cache, list(range(110)))
    assert long.n_cached == 60
    finish(cache, long, list(range(110)))
    cache.release(short, list(range(60)), 0.0)
    assert short.slot.node.snapshot is not None  # of the moment when the other began
    cache.forget(short.slot.node.snapshot)
    cache.take_ops()
    cache.offload_all(0.0)
    saves = [op.snapshot for op in cache.take_ops() if isinstance(op, Save)]
    assert {each.n_tokens: each.is_part for each in saves} == {60: True, 110: False}


def pass_by(cache: PrefixCache, device: FakeDevice, tokens: list[int], n_lasting: int) -> None:
    """A request of which only the first tokens' state lasts."""
    run_through(cache, device, tokens, {n_lasting}, n_lasting)


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_leaves_only_what_lasts(kind: str) -> None:
    cache = PrefixCache(config(**KINDS[kind]))  # type: ignore[arg-type]
    device = FakeDevice(cache)
    shared = list(range(80))
    alike = [*shared, *range(100, 120)]
    for first in (200, 300, 400, 500):
        pass_by(cache, device, [*alike, *range(first, first + 40)], len(shared))
    again = acquire(cache, [*alike, *range(500, 540), 7])
    assert again.n_cached > len(alike)  # as long as there is room, all of it serves
    finish(cache, again, [*alike, *range(500, 540), 7])
    cache.discard_parked({again.slot.seq_id})
    cache.offload_all(0.0)
    device.execute()
    cache.check()
    saved = [n for n in cache.tree.root.subtree() if n.snapshot is not None]
    whole = [n.snapshot for n in saved if n.snapshot is not None and not n.snapshot.is_part]
    assert [each.n_lasts for each in whole if each.n_tokens == 80 or kind != "recurrent"] == [80]
    restored = acquire(cache, [*shared, 9, 9, 9])
    assert (restored.n_cached, restored.layer) == (80, "host")
    device.execute()
    assert device.held[restored.slot.seq_id] == shared


def test_what_lasts_is_saved_before_another_prompt_takes_the_only_sequence() -> None:
    cache = PrefixCache(config(n_seq=1))
    device = FakeDevice(cache)
    shared = list(range(80))
    pass_by(cache, device, [*shared, 200, 201], len(shared))
    other = acquire(cache, [*shared[:20], 300, 301])
    finish(cache, other, [*shared[:20], 300, 301])
    device.execute()
    assert acquire(cache, [*shared, 400]).n_cached == 80


def test_an_offloaded_state_comes_back_from_the_host() -> None:
    cache = PrefixCache(config())
    device = FakeDevice(cache)
    tokens = list(range(60))
    lease = acquire(cache, tokens)
    device.execute()
    device.held[lease.slot.seq_id] = tokens[:]
    finish(cache, lease, tokens)
    assert cache.offload_all(0.0)
    device.execute()
    again = acquire(cache, [*range(40), 7])
    assert (again.n_cached, again.layer) == (40, "host")
    device.execute()
    assert device.held[again.slot.seq_id] == list(range(40))


def test_a_request_that_does_not_fit_leaves_what_it_would_have_used_intact() -> None:
    cache = PrefixCache(config(n_cells=200, host_bytes=4))
    device = FakeDevice(cache)
    lease = acquire(cache, list(range(100)))
    device.execute()
    device.held[lease.slot.seq_id] = list(range(100))
    finish(cache, lease, list(range(100)))
    other = acquire(cache, list(range(500, 540)))
    cache.advance([(other, 40)])
    device.execute()
    device.held[other.slot.seq_id] = list(range(500, 540))
    assert isinstance(cache.acquire([*range(50), *range(900, 1040)], (), 1.0), Full)
    device.execute()
    cache.check()
    assert cache.match_length(list(range(100))) == 100


def test_the_state_that_saves_least_is_evicted() -> None:
    cache = PrefixCache(config(host_bytes=4 * 120, n_seq=1))
    device = FakeDevice(cache)
    for start, n, hits in ((1000, 50, 3), (2000, 50, 0), (3000, 50, 0)):
        tokens = list(range(start, start + n))
        for _ in range(hits + 1):
            lease = acquire(cache, [*tokens, 1], now=start / 1000)
            device.execute()
            device.held[lease.slot.seq_id] = [*tokens, 1]
            finish(cache, lease, [*tokens, 1], now=start / 1000)
    cache.offload_all(4.0)
    device.execute()
    kept = [cache.match_length([*range(start, start + 50), 1]) for start in (1000, 2000, 3000)]
    assert kept == [51, 0, 51]


def test_parked_states_leave_the_device_beside_a_running_one() -> None:
    cache = PrefixCache(config())
    device = FakeDevice(cache)
    lease = acquire(cache, list(range(60)))
    device.held[lease.slot.seq_id] = list(range(60))
    finish(cache, lease, list(range(60)))
    acquire(cache, list(range(500, 520)))
    cache.tidy(1.0)
    assert len(cache.pool.parked) == 1
    cache.tidy(6.0)
    device.execute()
    assert not cache.pool.parked
    assert cache.match_length(list(range(60))) == 60


def test_compaction_moves_live_cells_down() -> None:
    cache = PrefixCache(config(n_cells=8192, n_ctx=8000, n_ubatch=512))
    device = FakeDevice(cache)
    big = acquire(cache, list(range(6000)))
    cache.advance([(big, 5000)])
    small = acquire(cache, list(range(7000, 7030)))
    cache.advance([(small, 20)])
    device.held = {big.slot.seq_id: list(range(5000)), small.slot.seq_id: list(range(7000, 7020))}
    cache.discard(big)
    device.execute()
    assert cache.cells is not None
    assert cache.cells.top == 5020
    cache.tidy(100.0)
    device.execute()
    cache.check()
    assert cache.cells.top == 20
    assert device.held[small.slot.seq_id] == list(range(7000, 7020))

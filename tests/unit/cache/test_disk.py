"""What the disk tier is asked for, and what it is given to keep."""

from __future__ import annotations

from array import array

import pytest

from ratoon.cache.disk import LATE_S, SETTLED_S, Keep
from ratoon.cache.lease import Lease, Wait
from ratoon.cache.placement import MemoryKind, Rewind
from ratoon.cache.prefix_cache import PrefixCache
from tests.unit.cache.test_prefix_cache import (
    KINDS,
    FakeDevice,
    acquire,
    config,
    finish,
    pass_by,
    run_through,
)


def new_cache(kind: str = "full", **changes: object) -> PrefixCache:
    return PrefixCache(config(**(KINDS[kind] | {"has_disk": True} | changes)))  # type: ignore[arg-type]


def know(cache: PrefixCache, tokens: list[int], key: str = "a", *, is_part: bool = False) -> None:
    n_bytes = 4 * len(tokens)
    cache.disk.know(tokens, key, n_bytes, is_part=is_part, n_hits=0, used_s=0.0)


def content(tokens: list[int]) -> memoryview:
    return memoryview(array("i", tokens)).cast("B")


def kept(cache: PrefixCache, now: float = 0.0, *, is_idle: bool = True) -> list[Keep]:
    """Everything that is due, taken as written."""
    keeps: list[Keep] = []
    while (keep := cache.disk.next_keep(now, is_idle=is_idle)) is not None:
        cache.disk.keep(keep, str(keep.tokens), now)
        cache.disk.lose(keep.replaces)
        keeps.append(keep)
    cache.check()
    return keeps


def test_a_state_on_disk_is_read_and_then_restored() -> None:
    cache = new_cache()
    device = FakeDevice(cache)
    tokens = list(range(100))
    know(cache, tokens)
    prompt = [*range(60), 7]
    assert cache.acquire(prompt, (), 0.0) == Wait(60)
    assert cache.acquire(prompt, (), 0.0) == Wait(60)
    assert cache.disk.take_errands().read == ["a"], "asked for once"
    cache.disk.arrive("a", content(tokens), 0.0)
    lease = acquire(cache, prompt)
    assert (lease.n_cached, lease.layer) == (60, "disk")
    assert cache.disk.take_errands().used == ["a"]
    device.execute()
    assert device.held[lease.slot.seq_id] == list(range(60))
    (node,) = (node for node in cache.tree.root.subtree() if node.stored is not None)
    assert node.stored is not None
    assert node.stored.snapshot.data is None, "it is not kept mapped"


def test_a_file_that_is_gone_is_computed_instead() -> None:
    cache = new_cache()
    know(cache, list(range(100)))
    assert isinstance(cache.acquire([*range(60), 7], (), 0.0), Wait)
    cache.disk.lose(["a"])
    assert acquire(cache, [*range(60), 7]).n_cached == 0
    cache.check()


def test_what_was_read_for_a_request_that_left_is_let_go() -> None:
    cache = new_cache()
    know(cache, list(range(100)))
    cache.acquire([*range(60), 7], (), 0.0)
    cache.disk.arrive("a", content(list(range(100))), 0.0)
    cache.disk.expire(1.0)
    assert isinstance(cache.acquire([*range(60), 7], (), 1.0), Lease)
    cache.take_ops()
    cache.disk.release()
    assert not cache.disk.has_read
    cache.acquire([*range(70), 8], (), 2.0)
    cache.disk.arrive("a", content(list(range(100))), 2.0)
    cache.disk.expire(100.0)
    assert not cache.disk.has_read
    (node,) = (node for node in cache.tree.root.subtree() if node.stored is not None)
    assert node.stored is not None
    assert node.stored.snapshot.data is None


def test_a_file_that_does_not_come_is_done_without() -> None:
    cache = new_cache()
    know(cache, list(range(100)))
    assert isinstance(cache.acquire([*range(60), 7], (), 0.0), Wait)
    cache.disk.expire(LATE_S)
    assert isinstance(cache.acquire([*range(60), 7], (), LATE_S), Wait)
    cache.disk.expire(LATE_S + 1.0)
    assert acquire(cache, [*range(60), 7]).n_cached == 0
    cache.disk.arrive("a", content(list(range(100))), LATE_S + 2.0)
    assert not cache.disk.has_read
    cache.check()


def test_a_state_at_hand_is_better_than_a_little_more_on_disk() -> None:
    cache = new_cache()
    lease = acquire(cache, [*range(50), 7])
    finish(cache, lease, [*range(50), 7])
    know(cache, [*range(50), 8, 9])
    assert acquire(cache, [*range(50), 8, 9, 10]).layer == "device"


def test_a_refused_state_is_removed_from_the_disk() -> None:
    cache = new_cache()
    tokens = list(range(100))
    know(cache, tokens)
    cache.acquire([*tokens, 7], (), 0.0)
    cache.disk.arrive("a", content(tokens), 0.0)
    lease = acquire(cache, [*tokens, 7])
    cache.forget(lease.origins[0])
    assert cache.disk.take_errands().bad == ["a"]
    assert len(cache.disk) == 0


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_a_part_on_disk_needs_its_carrier(kind: str) -> None:
    cache = new_cache(kind)
    device = FakeDevice(cache)
    tokens = list(range(100))
    know(cache, tokens[:40], "part", is_part=True)
    assert acquire(cache, [*tokens[:50], 7]).n_cached == 0
    know(cache, tokens, "whole")
    prompt = [*tokens[:45], 9]
    assert cache.acquire(prompt, (), 0.0) == Wait(40)
    errands = cache.disk.take_errands()
    assert sorted(errands.read) == ["part", "whole"]
    cache.disk.arrive("part", content(tokens[:40]), 0.0)
    assert cache.acquire(prompt, (), 0.0) == Wait(40)
    cache.disk.arrive("whole", content(tokens), 0.0)
    lease = acquire(cache, prompt)
    assert (lease.n_cached, lease.layer) == (40, "disk")
    device.execute()
    assert device.held[lease.slot.seq_id] == tokens[:40]


def test_a_state_too_long_for_this_window_is_not_known() -> None:
    cache = new_cache()
    know(cache, list(range(201)))
    assert len(cache.disk) == 0
    assert cache.match_length(list(range(50))) == 0


def test_a_conversation_is_kept_again_when_it_has_grown_or_rests() -> None:
    cache = new_cache(n_ctx=2000, n_cells=4000, host_bytes=1 << 20)
    tokens = list(range(800))
    finish(cache, acquire(cache, tokens), tokens)
    (first,) = kept(cache)
    assert (len(first.tokens), first.n_spared, first.replaces) == (800, 800, ())
    grown = [*tokens, *range(900, 930)]
    finish(cache, acquire(cache, grown), grown)
    assert kept(cache) == []
    (second,) = kept(cache, SETTLED_S)
    assert (len(second.tokens), second.n_spared, second.replaces) == (830, 830, (str(tokens),))
    more = [*grown, *range(1000, 1060)]
    finish(cache, acquire(cache, more, 9.0), more, 9.0)
    (third,) = kept(cache, 9.0)
    assert third.replaces == (str(grown),)
    assert len(cache.disk) == 1


def test_what_was_to_be_replaced_is_used_when_writing_fails() -> None:
    cache = new_cache()
    tokens, grown = list(range(100)), list(range(130))
    finish(cache, acquire(cache, tokens), tokens)
    kept(cache)
    finish(cache, acquire(cache, grown), grown)
    keep = cache.disk.next_keep(SETTLED_S, is_idle=True)
    assert keep is not None
    cache.disk.keep(keep, "long", SETTLED_S)
    cache.disk.lose(["long"])
    cache.discard_parked({slot.seq_id for slot in cache.pool.parked})
    assert cache.acquire([*grown, 7], (), SETTLED_S) == Wait(100)


def test_a_state_at_a_fork_is_not_replaced_by_its_branches() -> None:
    cache = new_cache()
    tokens = list(range(100))
    finish(cache, acquire(cache, tokens), tokens)
    kept(cache)
    for end in (7, 8):
        branch = [*tokens, *[end] * 30]
        finish(cache, acquire(cache, branch), branch)
        kept(cache, SETTLED_S)
    replaced = sorted(len(node.tokens) for node in cache.tree.root.subtree() if node.stored)
    assert replaced == [130, 130], "the first branch took its place before there was a fork"
    branch = [*tokens, *[9] * 30]
    finish(cache, acquire(cache, branch), branch)
    (keep,) = kept(cache, SETTLED_S)
    assert (keep.n_spared, keep.replaces) == (30, ())


def test_running_requests_are_not_held_up_by_a_copy() -> None:
    cache = new_cache()
    tokens = list(range(100))
    finish(cache, acquire(cache, tokens), tokens)
    assert kept(cache, 2.0, is_idle=False) == []
    assert len(kept(cache, 100.0, is_idle=False)) == 1


def test_a_large_copy_waits_until_the_conversation_rests() -> None:
    cache = new_cache(bytes_per_token=4 << 20, host_bytes=1 << 40)
    tokens = list(range(100))
    finish(cache, acquire(cache, tokens), tokens)
    assert kept(cache) == []
    assert kept(cache, 100.0, is_idle=False) == []
    assert len(kept(cache, 102.0)) == 1


def test_a_saved_state_costs_no_copy() -> None:
    cache = new_cache()
    device = FakeDevice(cache)
    tokens = list(range(100))
    lease = acquire(cache, tokens)
    device.execute()
    device.held[lease.slot.seq_id] = tokens[:]
    finish(cache, lease, tokens)
    cache.offload_all(0.0)
    device.execute()
    (keep,) = kept(cache, is_idle=False)
    assert keep.seq_id is None


def test_nothing_is_due_without_a_disk() -> None:
    cache = PrefixCache(config())
    tokens = list(range(100))
    finish(cache, acquire(cache, tokens), tokens)
    assert not cache.disk.n_due


def test_a_longer_whole_state_leaves_only_the_part_of_a_shorter_one() -> None:
    cache = new_cache("hybrid", n_ctx=400, n_cells=800)
    device = FakeDevice(cache)
    run_through(cache, device, list(range(100)), {50})
    sizes = [(len(keep.tokens), keep.snapshot.is_part) for keep in kept(cache, SETTLED_S)]
    assert sorted(sizes) == [(50, True), (99, True), (100, False)]
    run_through(cache, device, list(range(200)), {150})
    keeps = kept(cache, SETTLED_S)
    swapped = [keep for keep in keeps if keep.replaces]
    assert [(len(keep.tokens), keep.snapshot.is_part) for keep in swapped] == [(100, True)]
    wholes = [
        node.n_tokens
        for node in cache.tree.root.subtree()
        if node.stored is not None and not node.stored.snapshot.is_part
    ]
    assert wholes == [200]


def test_the_end_keeps_what_is_worth_it() -> None:
    cache = new_cache(n_ctx=2000, n_cells=4000, host_bytes=1 << 20)
    for start, n in ((0, 500), (1000, 8), (2000, 300)):
        tokens = list(range(start, start + n))
        finish(cache, acquire(cache, tokens), tokens)
    keeps = list(cache.disk.all_keeps(cache.pool.parked, cache.host.nodes, 0.0))
    assert sorted(len(keep.tokens) for keep in keeps) == [8, 300, 500]
    for keep in keeps:
        cache.disk.keep(keep, str(len(keep.tokens)), 0.0)
    assert list(cache.disk.all_keeps(cache.pool.parked, cache.host.nodes, 0.0)) == []


def test_a_restored_part_is_rewound() -> None:
    cache = new_cache("hybrid")
    tokens = list(range(100))
    know(cache, tokens[:40], "part", is_part=True)
    know(cache, tokens, "whole")
    prompt = [*tokens[:45], 9]
    cache.acquire(prompt, (), 0.0)
    cache.disk.arrive("part", content(tokens[:40]), 0.0)
    cache.disk.arrive("whole", content(tokens), 0.0)
    acquire(cache, prompt)
    assert isinstance(cache.take_ops()[1], Rewind)
    assert cache.memory is MemoryKind.HYBRID


def test_what_passes_is_kept_only_for_what_lasts_of_it() -> None:
    cache = new_cache()
    device = FakeDevice(cache)
    shared = list(range(80))
    for first in (200, 500):
        pass_by(cache, device, [*shared, *range(first, first + 60)], len(shared))
    [keep] = kept(cache, SETTLED_S)
    assert keep.tokens[:80] == shared
    pass_by(cache, device, [*shared, *range(300, 360)], len(shared))
    assert kept(cache, 2 * SETTLED_S) == []
    finish(cache, acquire(cache, [*shared, *range(400, 460)]), [*shared, *range(400, 460)])
    assert len(kept(cache, 3 * SETTLED_S)) == 1, "another's state is kept as ever"


def test_a_state_goes_to_the_host_though_a_file_has_it() -> None:
    cache = new_cache()
    shared = list(range(80))
    finish(cache, acquire(cache, shared), shared)
    know(cache, [*shared, 200, 201])
    cache.offload_all(0.0)
    assert len(cache.host) == 1

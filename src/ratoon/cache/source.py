"""Where a prompt can start from: states that share its beginning, and who will soon have more."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from ratoon.cache.config import CacheConfig
from ratoon.cache.placement import Snapshot, Stored
from ratoon.cache.radix import Match, Node
from ratoon.cache.slots import Slot

# A node on the matched path or below its end, and how many tokens its states share with the prompt.
Reach = tuple[Node, int]


class Tier(enum.IntEnum):
    """Where a state lies; a lower one is at hand sooner."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True, slots=True)
class Source:
    """The state to start from: a slot, a whole snapshot, or neither (cold). With ``part``, it is
    that part's carrier. Those of ``files`` must be mapped first."""

    n_tokens: int = 0
    slot: Slot | None = None
    snapshot: Snapshot | None = None
    node: Node | None = None
    part: Snapshot | None = None
    files: tuple[Stored, ...] = ()

    @property
    def tier(self) -> Tier:
        if self.files:
            return Tier.DISK
        return Tier.HOST if self.snapshot is not None else Tier.DEVICE

    @property
    def layer(self) -> str:
        return self.tier.name.lower() if self.n_tokens else "cold"

    @property
    def n_bytes(self) -> int:
        """How much must be moved."""
        return self.snapshot.n_bytes if self.snapshot is not None else 0


def states_on_path(match: Match, limit: int) -> list[Reach]:
    """Every node whose states share a prefix with the prompt, of which ``limit`` tokens count."""
    below = [(node, limit) for node in match.node.subtree()] if match.n_tokens else []
    parent = match.node.parent
    above = [(node, min(limit, node.n_tokens)) for node in parent.ancestors()] if parent else []
    return below + above


def states_at_forks(match: Match) -> list[Reach]:
    """Those at hand that left the path, at the last fork where there are any. Only where states can
    be trimmed are they of use; and only when those on the path are slower to get."""
    below = match.node
    for node in below.parent.ancestors() if below.parent is not None else ():
        branches = [child for child in node.children.values() if child is not below]
        nodes = [each for child in branches for each in child.subtree()]
        found = [(each, node.n_tokens) for each in nodes if each.slots or each.snapshot is not None]
        if found:
            return found
        below = node
    return []


def best_source(states: list[Reach], config: CacheConfig) -> Source:
    """The longest usable state; one that is at hand sooner where another gains too little, and of
    equal ones the smallest."""
    best = [Source() for _ in Tier]
    for node, reach in states:
        for found in _sources_at(node, reach, config, _least_useful(best, config)):
            known = best[found.tier]
            if (found.n_tokens, -found.n_bytes) > (known.n_tokens, -known.n_bytes):
                best[found.tier] = found
    source, host, disk = best
    if host.n_tokens >= source.n_tokens + config.min_reuse:
        source = host
    if disk.n_tokens >= source.n_tokens + _least_gain(disk, config):
        source = disk
    return source


def _least_gain(disk: Source, config: CacheConfig) -> int:
    """Reading a state costs about as much as computing 1/64 of it."""
    n_read = max((stored.snapshot.n_tokens for stored in disk.files), default=0)
    return max(config.min_reuse, n_read // 64)


def _least_useful(best: list[Source], config: CacheConfig) -> int:
    """A source of no more tokens can't win any more."""
    device, host, disk = best
    return max(
        device.n_tokens,
        host.n_tokens - config.min_reuse,
        disk.n_tokens - _least_gain(disk, config),
    )


def _sources_at(node: Node, reach: int, config: CacheConfig, least: int) -> Iterator[Source]:
    for slot in node.slots:
        # a parked one goes on in place; of a running one a copy is made, as by a save
        is_own = not slot.is_leased or config.floor(slot.n_tokens) == slot.n_tokens
        yield Source(_usable(slot.n_tokens, reach, config, is_own), slot=slot, node=node)
    if node.snapshot is not None:
        yield from _saved(node, node.snapshot, (), reach, config, least)
    if node.stored is not None:
        yield from _saved(node, node.stored.snapshot, (node.stored,), reach, config, least)


def _saved(
    node: Node,
    snapshot: Snapshot,
    files: tuple[Stored, ...],
    reach: int,
    config: CacheConfig,
    least: int,
) -> Iterator[Source]:
    if not snapshot.is_part:
        is_own = config.floor(snapshot.n_tokens) == snapshot.n_tokens
        n_usable = _usable(snapshot.n_tokens, reach, config, is_own)
        yield Source(n_usable, snapshot=snapshot, node=node, files=files)
    elif least < snapshot.n_tokens <= reach:
        yield from _carried(node, snapshot, files)


def _carried(node: Node, part: Snapshot, files: tuple[Stored, ...]) -> Iterator[Source]:
    """A part with its shortest carriers, one of each tier."""
    slots, saved, stored = list[Slot](), list[Snapshot](), list[Stored]()
    for below in node.subtree():
        slots += [slot for slot in below.slots if slot.n_tokens >= part.n_tokens]
        if below.snapshot is not None and not below.snapshot.is_part:
            saved.append(below.snapshot)
        if below.stored is not None and not below.stored.snapshot.is_part:
            stored.append(below.stored)
    n = part.n_tokens
    if slots:
        slot = min(slots, key=lambda each: (each.is_leased, each.n_tokens))
        yield Source(n, slot=slot, node=node, part=part, files=files)
    if saved:
        snapshot = min(saved, key=lambda each: each.n_tokens)
        yield Source(n, snapshot=snapshot, node=node, part=part, files=files)
    if stored:
        carrier = min(stored, key=lambda each: each.snapshot.n_tokens)
        whole = carrier.snapshot
        yield Source(n, snapshot=whole, node=node, part=part, files=(*files, carrier))


def worthy_leader(
    states: list[Reach], source: Source, config: CacheConfig
) -> tuple[Slot, int] | None:
    """A running request that will soon hold more of this prompt than ``source``, and how much.

    Computing beside it halves both speeds, so waiting pays while what the leader still has to
    compute is at most twice what it would spare.
    """
    for node, most in states:
        reach = config.floor(most)
        for slot in node.slots:
            gain, missing = reach - source.n_tokens, reach - slot.n_tokens
            if slot.is_leased and gain >= config.min_reuse and 0 < missing <= 2 * gain:
                return slot, reach
    return None


def _usable(n_state: int, reach: int, config: CacheConfig, is_own: bool) -> int:
    if config.memory.can_trim:
        return min(n_state, reach)
    return n_state if n_state <= reach and is_own else 0

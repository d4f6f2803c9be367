"""Where a prompt can start from: states that share its beginning, and who will soon have more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ratoon.cache.config import CacheConfig
from ratoon.cache.placement import Snapshot
from ratoon.cache.radix import Match, Node
from ratoon.cache.slots import Slot

# A node on the matched path or below its end, and how many tokens its states share with the prompt.
Reach = tuple[Node, int]


@dataclass(frozen=True, slots=True)
class Source:
    """The state to start from: a slot, a whole snapshot, or neither (cold). With ``part``, it is
    that part's carrier."""

    n_tokens: int = 0
    slot: Slot | None = None
    snapshot: Snapshot | None = None
    node: Node | None = None
    part: Snapshot | None = None

    @property
    def layer(self) -> str:
        if not self.n_tokens:
            return "cold"
        return "device" if self.slot is not None else "host"


def states_on_path(match: Match, limit: int) -> list[Reach]:
    """Every node whose states share a prefix with the prompt, of which ``limit`` tokens count."""
    below = [(node, limit) for node in match.node.subtree()] if match.n_tokens else []
    parent = match.node.parent
    above = [(node, min(limit, node.n_tokens)) for node in parent.ancestors()] if parent else []
    return below + above


def best_source(states: list[Reach], config: CacheConfig) -> Source:
    """The longest usable state; a device one where the host gains too little, and of equal
    snapshots the smallest."""
    device, host = Source(), Source()
    for node, reach in states:
        for found in _sources_at(node, reach, config):
            n = found.n_tokens
            if found.slot is not None:
                device = found if n > device.n_tokens else device
            elif n > host.n_tokens or (n == host.n_tokens > 0 and _is_smaller(found, host)):
                host = found
    return host if host.n_tokens >= device.n_tokens + config.min_reuse else device


def _sources_at(node: Node, reach: int, config: CacheConfig) -> Iterator[Source]:
    for slot in node.slots:
        # a parked one goes on in place; of a running one a copy is made, as by a save
        is_own = not slot.is_leased or config.floor(slot.n_tokens) == slot.n_tokens
        yield Source(_usable(slot.n_tokens, reach, config, is_own), slot=slot, node=node)
    snapshot = node.snapshot
    if snapshot is None:
        return
    if snapshot.is_part:
        if snapshot.n_tokens <= reach:
            yield from _carried(node, snapshot)
        return
    is_own = config.floor(snapshot.n_tokens) == snapshot.n_tokens
    yield Source(_usable(snapshot.n_tokens, reach, config, is_own), snapshot=snapshot, node=node)


def _carried(node: Node, part: Snapshot) -> Iterator[Source]:
    """A part with its shortest carriers, one on the device and one on the host."""
    slots, snapshots = list[Slot](), list[Snapshot]()
    for below in node.subtree():
        slots += [slot for slot in below.slots if slot.n_tokens >= part.n_tokens]
        if below.snapshot is not None and not below.snapshot.is_part:
            snapshots.append(below.snapshot)
    if slots:
        slot = min(slots, key=lambda each: (each.is_leased, each.n_tokens))
        yield Source(part.n_tokens, slot=slot, node=node, part=part)
    if snapshots:
        snapshot = min(snapshots, key=lambda each: each.n_tokens)
        yield Source(part.n_tokens, snapshot=snapshot, node=node, part=part)


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


def _is_smaller(found: Source, host: Source) -> bool:
    assert found.snapshot is not None
    assert host.snapshot is not None
    return found.snapshot.n_bytes < host.snapshot.n_bytes

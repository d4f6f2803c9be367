"""Where a prompt can start from: states that share its beginning, and who will soon have more."""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.cache.config import CacheConfig
from ratoon.cache.placement import Snapshot
from ratoon.cache.radix import Match, Node
from ratoon.cache.slots import Slot

# A node on the matched path or below its end, and how many tokens its states share with the prompt.
Reach = tuple[Node, int]


@dataclass(frozen=True, slots=True)
class Source:
    """The state to start from: a slot, a snapshot, or neither (cold)."""

    n_tokens: int = 0
    slot: Slot | None = None
    snapshot: Snapshot | None = None
    node: Node | None = None

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
        for slot in node.slots:
            n = _usable(slot.n_tokens, reach, config)
            if n > device.n_tokens:
                device = Source(n, slot=slot, node=node)
        if node.snapshot is not None:
            n = _usable(node.snapshot.n_tokens, reach, config)
            if n > host.n_tokens or (n == host.n_tokens > 0 and _is_smaller(node, host)):
                host = Source(n, snapshot=node.snapshot, node=node)
    return host if host.n_tokens >= device.n_tokens + config.min_reuse else device


def worthy_leader(
    states: list[Reach], source: Source, config: CacheConfig
) -> tuple[Slot, int] | None:
    """A running request that will soon hold more of this prompt than ``source``, and how much.

    Computing beside it halves both speeds, so waiting pays while what the leader still has to
    compute is at most twice what it would spare.
    """
    for node, reach in states:
        for slot in node.slots:
            gain, missing = reach - source.n_tokens, reach - slot.n_tokens
            if slot.is_leased and gain >= config.min_reuse and 0 < missing <= 2 * gain:
                return slot, reach
    return None


def _usable(n_state: int, reach: int, config: CacheConfig) -> int:
    if config.memory.can_trim:
        return min(n_state, reach)
    return n_state if n_state <= reach else 0


def _is_smaller(node: Node, host: Source) -> bool:
    assert node.snapshot is not None
    assert host.snapshot is not None
    return node.snapshot.n_bytes < host.snapshot.n_bytes

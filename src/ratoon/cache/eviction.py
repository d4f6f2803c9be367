"""What a saved state is worth: the tokens it saves, times how often, per byte it takes."""

from __future__ import annotations

import math

from ratoon.cache.placement import MemoryKind
from ratoon.cache.radix import Node
from ratoon.cache.slots import Slot

HALF_LIFE_S = 900.0  # an agent's next turn comes within minutes; a session ends within hours


def worth(node: Node, n_bytes: int, now: float, memory: MemoryKind, *, is_part: bool) -> float:
    """Expected tokens saved per byte by the state at ``node``.

    Tokens count from the nearest ancestor that has a state, for that part is saved without this
    one. Where states can be trimmed, one that a single longer state contains is worth nothing; one
    at a fork is worth itself, for it outlives each of its branches. A part without a carrier is
    worth nothing; a whole state that alone carries the parts above it is worth their tokens, too.
    """
    if is_part and not has_carrier(node):
        return 0.0
    if memory.can_trim and len(node.children) == 1 and _has_longer(node):
        return 0.0
    counts_parts = is_part or (memory.has_part and _has_longer(node))
    age_s = max(0.0, now - node.last_used_s)
    frequency = (1 + node.n_hits) * math.exp2(-age_s / HALF_LIFE_S)
    return (node.n_tokens - _depth_above(node, counts_parts)) * frequency / max(1, n_bytes)


def overlap(slot: Slot, memory: MemoryKind, *, on_device: bool) -> int:
    """Tokens of this slot's state that another one holds too: any other, or only device ones."""
    below: Node | None = None
    counts_branches = memory.can_trim or (on_device and memory.has_cells)
    for node in slot.node.ancestors():
        others = any(other is not slot for other in node.slots)
        others |= not on_device and _has_saved(node, slot)
        branches = (child for child in node.children.values() if child is not below)
        if others or (counts_branches and any(_has_any(each, on_device) for each in branches)):
            return node.n_tokens
        below = node
    return 0


def _has_any(branch: Node, on_device: bool) -> bool:
    """Whether some state on the device, or else in memory, too, lies in this branch."""
    return any(
        each.slots or (each.snapshot is not None and not on_device) for each in branch.subtree()
    )


def has_carrier(node: Node, but: Slot | None = None) -> bool:
    """Whether another state than ``but`` begins with this node's tokens."""
    return any(
        (below.snapshot is not None and not below.snapshot.is_part)
        or any(slot is not but and slot.n_tokens >= node.n_tokens for slot in below.slots)
        for below in node.subtree()
    )


def _has_saved(node: Node, but: Slot) -> bool:
    if node.snapshot is None:
        return False
    return not node.snapshot.is_part or has_carrier(node, but)


def _has_longer(node: Node) -> bool:
    return any(below is not node and _has_whole(below) for below in node.subtree())


def _depth_above(node: Node, counts_parts: bool) -> int:
    parent = node.parent
    while parent is not None and parent.parent is not None:
        if _has_whole(parent) or (counts_parts and parent.snapshot is not None):
            return parent.n_tokens
        parent = parent.parent
    return 0


def _has_whole(node: Node) -> bool:
    is_saved = node.snapshot is not None and not node.snapshot.is_part
    return is_saved or any(not slot.is_leased for slot in node.slots)

"""What a saved state is worth: the tokens it saves, times how often, per byte it takes."""

from __future__ import annotations

import math

from ratoon.cache.radix import Node

HALF_LIFE_S = 900.0  # an agent's next turn comes within minutes; a session ends within hours


def worth(node: Node, n_bytes: int, now: float, can_trim: bool) -> float:
    """Expected tokens saved per byte by the state at ``node``.

    Tokens count from the nearest ancestor that has a state, for that part is saved without this
    one. Where states can be trimmed, one that a single longer state contains is worth nothing; one
    at a fork is worth itself, for it outlives each of its branches.
    """
    if can_trim and len(node.children) == 1 and _has_longer(node):
        return 0.0
    age_s = max(0.0, now - node.last_used_s)
    frequency = (1 + node.n_hits) * math.exp2(-age_s / HALF_LIFE_S)
    return (node.n_tokens - _depth_above(node)) * frequency / max(1, n_bytes)


def _has_longer(node: Node) -> bool:
    return any(below is not node and has_state(below) for below in node.subtree())


def _depth_above(node: Node) -> int:
    parent = node.parent
    while parent is not None and parent.parent is not None:
        if has_state(parent):
            return parent.n_tokens
        parent = parent.parent
    return 0


def has_state(node: Node) -> bool:
    return node.snapshot is not None or any(not slot.is_leased for slot in node.slots)

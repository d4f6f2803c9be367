"""A radix tree over token ids. A node is the end of a prefix and holds where its state lies.

A saved state covers positions [0, n) as a whole, so splitting an edge can't split a state: the
lower node keeps its placements, the new upper node has none. Pure: no clock, threads or model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ratoon.cache.placement import Snapshot, Stored

if TYPE_CHECKING:
    from ratoon.cache.slots import Slot


@dataclass(eq=False, slots=True)
class Node:
    """The prefix that ends here: the edges from the root down, ``n_tokens`` in all."""

    parent: Node | None
    edge: list[int]
    n_tokens: int
    children: dict[int, Node] = field(default_factory=dict)
    slots: list[Slot] = field(default_factory=list)
    snapshot: Snapshot | None = None
    stored: Stored | None = None
    ref_count: int = 0  # running requests whose prompt passes through or ends here
    n_hits: int = 0
    last_used_s: float = 0.0
    bookmarks: dict[int, bytes] = field(default_factory=dict)  # by token count, within the edge

    @property
    def is_bare(self) -> bool:
        """Holds no state and no request needs it."""
        has_state = self.slots or self.snapshot is not None or self.stored is not None
        return not has_state and not self.ref_count

    @property
    def tokens(self) -> list[int]:
        """All tokens of the prefix."""
        edges = [node.edge for node in self.ancestors()]
        return [token for edge in reversed(edges) for token in edge]

    def ancestors(self) -> Iterator[Node]:
        """This node and those above it, the root excluded."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def subtree(self) -> Iterator[Node]:
        """This node and all below it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


@dataclass(frozen=True, slots=True)
class Match:
    """The longest known prefix: ``n_tokens`` long. ``node`` is the node at or just below its end:
    every state in its subtree begins with the matched tokens; ``node.parent`` and those above lie
    wholly on the matched path, and so does ``node`` itself where ``is_whole``."""

    node: Node
    n_tokens: int

    @property
    def is_whole(self) -> bool:
        return self.node.n_tokens == self.n_tokens


class RadixTree:
    """Compressed: a node without placements, locks or a fork is merged away.

    A bookmark names a prefix for whoever set it; ``lost`` collects those whose prefix has left the
    tree.
    """

    def __init__(self) -> None:
        self.root = Node(parent=None, edge=[], n_tokens=0)
        self.lost: list[bytes] = []

    def match(self, tokens: Sequence[int]) -> Match:
        """The longest prefix of ``tokens`` that is in the tree. Changes nothing."""
        node, depth = self.root, 0
        while depth < len(tokens):
            child = node.children.get(tokens[depth])
            if child is None:
                break
            n = common_prefix(child.edge, tokens, depth)
            node, depth = child, depth + n
            if n < len(child.edge):
                break
        return Match(node, depth)

    def insert(self, tokens: Sequence[int]) -> Node:
        """The node that ends at ``tokens``, made by a new leaf or a split where it is missing."""
        found = self.match(tokens)
        node = found.node
        if not found.is_whole:
            node = self._split(node, found.n_tokens)
        if found.n_tokens == len(tokens):
            return node
        edge = list(tokens[found.n_tokens :])
        leaf = Node(parent=node, edge=edge, n_tokens=len(tokens))
        node.children[edge[0]] = leaf
        return leaf

    def _split(self, lower: Node, depth: int) -> Node:
        parent = lower.parent
        assert parent is not None
        cut = depth - parent.n_tokens
        upper = Node(
            parent=parent,
            edge=lower.edge[:cut],
            n_tokens=depth,
            ref_count=lower.ref_count,
            last_used_s=lower.last_used_s,
        )
        parent.children[upper.edge[0]] = upper
        for n in [n for n in lower.bookmarks if n <= depth]:
            upper.bookmarks[n] = lower.bookmarks.pop(n)
        lower.edge = lower.edge[cut:]
        lower.parent = upper
        upper.children[lower.edge[0]] = lower
        return upper

    def lock(self, node: Node) -> None:
        """Keep this node and its ancestors in the tree until ``unlock``."""
        for each in node.ancestors():
            each.ref_count += 1

    def unlock(self, node: Node) -> None:
        """Undo one ``lock``; removes what only the lock kept."""
        path = list(node.ancestors())
        for each in path:
            each.ref_count -= 1
        for each in path:
            self.prune(each)

    def prune(self, node: Node) -> None:
        """Remove what a vanished placement left useless, from ``node`` upwards."""
        while node.parent is not None and node.is_bare:
            parent = node.parent
            if parent.children.get(node.edge[0]) is not node:
                return  # already gone
            if not node.children:
                del parent.children[node.edge[0]]
                self.lost += node.bookmarks.values()
            elif len(node.children) == 1:
                self._merge(node)
                return
            else:
                return
            node = parent

    def _merge(self, node: Node) -> None:
        """Join a bare node with its only child."""
        (child,) = node.children.values()
        assert node.parent is not None
        child.edge = node.edge + child.edge
        child.bookmarks |= node.bookmarks
        child.parent = node.parent
        node.parent.children[child.edge[0]] = child

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for node in self.root.subtree():
            for first, child in node.children.items():
                assert child.parent is node
                assert child.edge, "an edge has at least one token"
                assert child.edge[0] == first
                assert child.n_tokens == node.n_tokens + len(child.edge)
                assert all(node.n_tokens < n <= child.n_tokens for n in child.bookmarks)
                assert child.ref_count <= node.ref_count or node is self.root
            if node is not self.root and node.is_bare:
                assert len(node.children) >= 2, "a bare node is a fork"


def common_prefix(edge: Sequence[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens of ``edge`` equal ``tokens[start:]``; compares slices, which C does fast."""
    limit = min(len(edge), len(tokens) - start)
    n, step = 0, 64
    while n < limit:
        end = min(limit, n + step)
        if edge[n:end] == tokens[start + n : start + end]:
            n, step = end, step * 2
            continue
        if end - n == 1:
            return n
        step = max(1, (end - n) // 2)
    return n

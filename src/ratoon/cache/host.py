"""The host tier: snapshots in memory under a byte budget."""

from __future__ import annotations

from ratoon.cache.eviction import worth
from ratoon.cache.placement import ALL, MemoryKind, Snapshot
from ratoon.cache.radix import Node, RadixTree


class HostTier:
    """Owns which node has a snapshot. ``n_bytes`` is always the sum over them."""

    def __init__(self, tree: RadixTree, max_bytes: int, memory: MemoryKind) -> None:
        self._tree = tree
        self._max_bytes = max_bytes
        self._memory = memory
        self._nodes: dict[Snapshot, Node] = {}
        self.n_bytes = 0
        self.n_evicted = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def make_room(self, node: Node, n_bytes: int, now: float, *, is_part: bool = False) -> bool:
        """Evict what is worth less than a new state at ``node``. False: it does not pay to save it,
        and nothing was evicted."""
        missing = self.n_bytes + n_bytes - self._max_bytes
        if missing <= 0:
            return True
        limit = worth(node, n_bytes, now, self._memory, is_part=is_part)
        victims: list[Snapshot] = []
        for value, snapshot in self._ranked(now):
            if missing <= 0 or value >= limit:
                break
            if not self._nodes[snapshot].ref_count or value == 0:
                victims.append(snapshot)
                missing -= snapshot.n_bytes
        if missing > 0:
            return False
        for snapshot in victims:
            self.remove(snapshot)
            self.n_evicted += 1
        return True

    def _ranked(self, now: float) -> list[tuple[float, Snapshot]]:
        """Cheapest loss first; of those on a running request's path, last."""
        priced = [
            (node.ref_count > 0, self._worth(node, snapshot, now), snapshot)
            for snapshot, node in self._nodes.items()
        ]
        priced.sort(key=lambda entry: entry[:2])
        return [(value, snapshot) for _, value, snapshot in priced]

    def _worth(self, node: Node, snapshot: Snapshot, now: float) -> float:
        return worth(node, snapshot.n_bytes, now, self._memory, is_part=snapshot.is_part)

    def add(
        self, node: Node, n_bytes: int, *, is_part: bool = False, n_lasting: int = ALL
    ) -> Snapshot:
        """A snapshot at ``node``, to be filled; room was made before."""
        if node.snapshot is not None:
            self.remove(node.snapshot, prune=False)
        snapshot = Snapshot(node.n_tokens, n_bytes, is_part, n_lasting=n_lasting)
        node.snapshot = snapshot
        self._nodes[snapshot] = node
        self.n_bytes += n_bytes
        return snapshot

    @property
    def nodes(self) -> list[Node]:
        """Those that have a snapshot."""
        return list(self._nodes.values())

    def fill(self, snapshot: Snapshot, data: memoryview) -> Node | None:
        """The bytes arrived; they replace the estimate in the books. Returns the node that they
        are of, unless it was given up meanwhile."""
        node = self._nodes.get(snapshot)
        if node is not None:
            self.n_bytes += len(data) - snapshot.n_bytes
        snapshot.data = data
        snapshot.n_bytes = len(data)
        return node

    def remove(self, snapshot: Snapshot, *, prune: bool = True) -> None:
        node = self._nodes.pop(snapshot, None)
        if node is None:
            return
        self.n_bytes -= snapshot.n_bytes
        node.snapshot = None
        if prune:
            self._tree.prune(node)

    def evict(self) -> int:
        """Remove all snapshots but those on running requests' paths; returns how many."""
        loose = [snapshot for snapshot, node in self._nodes.items() if not node.ref_count]
        for snapshot in loose:
            self.remove(snapshot)
        self.n_evicted += len(loose)
        return len(loose)

    def forget_unfilled(self) -> None:
        for snapshot in [each for each in self._nodes if each.data is None]:
            self.remove(snapshot)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert self.n_bytes == sum(snapshot.n_bytes for snapshot in self._nodes)
        for snapshot, node in self._nodes.items():
            assert node.snapshot is snapshot
            assert node.n_tokens == snapshot.n_tokens

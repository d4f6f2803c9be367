"""The disk tier's books: which prefixes have their state in a file, and which ought to.

Files are read and written elsewhere. ``take_errands`` says what is wanted of them, ``next_keep``
which state to write next; ``arrive``, ``keep`` and ``lose`` tell what became of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ratoon.cache.config import CacheConfig
from ratoon.cache.eviction import worth
from ratoon.cache.placement import SeqId, Snapshot, Stored
from ratoon.cache.radix import Node, RadixTree
from ratoon.cache.slots import Slot

SETTLED_S = 5.0  # a conversation that rests this long is kept whole
BUSY_S = 30.0  # a state on the device is copied this late while requests run
MAPPED_S = 30.0  # what was read and is still not used after this long is let go
LATE_S = 60.0  # what was not read after this long, and the time that a slow disk takes, won't be
SLOW_BYTES = 50 << 20  # a second
QUICK_BYTES = 256 << 20  # copying so much takes about a tenth of a second
MAX_DUE = 1024


@dataclass(slots=True)
class Errands:
    """Keys of files to ``read``, of those that were ``used``, and of ``bad`` ones."""

    read: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)


@dataclass(frozen=True, eq=False, slots=True)
class Keep:
    """Write the state of a node to a file, in place of those that it ``replaces``.

    ``seq_id``: the snapshot has still to be copied from this sequence. ``n_spared``: the tokens
    that it saves over the files there are.
    """

    node: Node
    tokens: list[int]
    snapshot: Snapshot
    seq_id: SeqId | None
    n_spared: int
    replaces: tuple[str, ...] = ()


class DiskTier:
    """Owns which node has a file. Without ``config.has_disk`` nothing is ever due."""

    def __init__(self, tree: RadixTree, config: CacheConfig) -> None:
        self._tree = tree
        self._config = config
        self._nodes: dict[str, Node] = {}
        self._asked: dict[str, float] = {}  # being read or mapped; since when
        self._used: list[Stored] = []  # mapped for operations that are still to be executed
        self._due: dict[Node, float] = {}  # has a state that may be worth a file; when to look
        self._errands = Errands()

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def n_due(self) -> int:
        """States that may be worth a file."""
        return len(self._due)

    @property
    def has_read(self) -> bool:
        """Whether a file is being read, or was and is still mapped."""
        return bool(self._asked)

    def take_errands(self) -> Errands:
        """What is wanted since the last call."""
        errands, self._errands = self._errands, Errands()
        return errands

    # --- what is there -------------------------------------------------------------------------

    def know(
        self,
        tokens: list[int],
        key: str,
        n_bytes: int,
        *,
        is_part: bool,
        n_hits: int,
        used_s: float,
    ) -> None:
        """A file that was there at the start; of two with the same tokens the whole one counts."""
        if len(tokens) > self._config.n_ctx:
            return
        node = self._tree.insert(tokens)
        if node.stored is not None and not node.stored.snapshot.is_part:
            return
        self._place(node, Stored(key, Snapshot(len(tokens), n_bytes, is_part)))
        node.n_hits = max(node.n_hits, n_hits)
        for each in node.ancestors():
            each.last_used_s = max(each.last_used_s, used_s)

    def _place(self, node: Node, stored: Stored) -> None:
        if node.stored is not None:
            self._take(node.stored.key)
        node.stored = stored
        self._nodes[stored.key] = node

    def _take(self, key: str) -> Node | None:
        """The node that had this file and has it no longer."""
        self._asked.pop(key, None)
        node = self._nodes.pop(key, None)
        if node is not None:
            node.stored = None
        return node

    def lose(self, keys: Iterable[str]) -> None:
        """These files are gone, or can't be read."""
        for key in keys:
            if (node := self._take(key)) is not None:
                self._tree.prune(node)

    def distrust(self, snapshot: Snapshot) -> None:
        """The model refused this state."""
        for key, node in self._nodes.items():
            if node.stored is not None and node.stored.snapshot is snapshot:
                self._errands.bad.append(key)
                self.lose([key])
                return

    # --- reading -------------------------------------------------------------------------------

    def is_at_hand(self, files: Iterable[Stored], now: float) -> bool:
        """Whether all of these are mapped; those that are not will be read."""
        missing = [stored for stored in files if stored.snapshot.data is None]
        for stored in missing:
            if stored.key not in self._asked:
                self._asked[stored.key] = now
                self._errands.read.append(stored.key)
        return not missing

    def arrive(self, key: str, data: memoryview, now: float) -> None:
        """A file was read."""
        node = self._nodes.get(key)
        if node is not None and node.stored is not None:
            node.stored.snapshot.data = data
            self._asked[key] = now

    def use(self, files: Iterable[Stored]) -> None:
        """Decided operations restore these."""
        for stored in files:
            self._used.append(stored)
            self._errands.used.append(stored.key)

    def release(self) -> None:
        """All operations so far were executed: unmap what they used."""
        for stored in self._used:
            self._unmap(stored)
        self._used.clear()

    def expire(self, now: float) -> None:
        """Unmap what nobody used, and do without what does not come: requests wait for it."""
        late: list[str] = []
        for key, since in list(self._asked.items()):
            stored = self._nodes[key].stored
            if stored is None or now - since <= MAPPED_S:
                continue
            if stored.snapshot.data is not None:
                self._unmap(stored)
            elif now - since > LATE_S + stored.snapshot.n_bytes / SLOW_BYTES:
                late.append(key)
        self.lose(late)

    def _unmap(self, stored: Stored) -> None:
        stored.snapshot.data = None
        self._asked.pop(stored.key, None)

    # --- writing -------------------------------------------------------------------------------

    def consider(self, node: Node, now: float) -> None:
        """A state at this node was saved or parked: it may be worth a file."""
        if self._config.has_disk:
            self._due.pop(node, None)
            self._due[node] = now
            if len(self._due) > MAX_DUE:
                del self._due[next(iter(self._due))]

    def next_keep(self, now: float, *, is_idle: bool) -> Keep | None:
        """The next state that is worth a file now.

        A state is written again when its conversation has grown by 1/16, so all writes together
        are a small multiple of the last one; once the conversation rests, by 1/64. A state that is
        only on the device has to be copied, which holds up requests that run, or come meanwhile.
        """
        for node, due_s in list(self._due.items()):
            if now < due_s:
                continue
            del self._due[node]
            idle_s = now - node.last_used_s
            is_quick = self._config.n_bytes(node.n_tokens) <= QUICK_BYTES
            may_copy = idle_s >= SETTLED_S or is_quick if is_idle else idle_s >= BUSY_S and is_quick
            keep = self._keep_of(node, 64 if idle_s >= SETTLED_S else 16, may_copy=may_copy)
            if keep is not None:
                return keep
            if not may_copy and _parked_at(node):
                self._due[node] = now + 1.0
            elif idle_s < SETTLED_S:
                self._due[node] = node.last_used_s + SETTLED_S
        return None

    def all_keeps(self, slots: Iterable[Slot], saved: Iterable[Node], now: float) -> Iterator[Keep]:
        """Before the end: all that is worth a file, the worthiest first."""
        nodes = {slot.node for slot in slots} | set(saved)
        memory, config = self._config.memory, self._config

        def value(node: Node) -> float:
            return worth(node, config.n_bytes(node.n_tokens), now, memory, is_part=False)

        for node in sorted(nodes, key=value, reverse=True):
            keep = self._keep_of(node, 64, may_copy=True)
            if keep is not None:
                yield keep

    def _keep_of(self, node: Node, share: int, *, may_copy: bool) -> Keep | None:
        """What of the states at this node is to be written: the whole one, or else its part."""
        saved, slot = node.snapshot, _parked_at(node)
        if saved is not None and saved.data is None:
            saved = None  # decided, but not yet executed
        if saved is not None and not saved.is_part:
            return self._keep_whole(node, saved, None, share)
        if slot is not None and may_copy:
            n_bytes = self._config.n_bytes(node.n_tokens)
            fresh = Snapshot(node.n_tokens, n_bytes, n_lasting=slot.n_lasting)
            keep = self._keep_whole(node, fresh, slot.seq_id, share)
            if keep is not None:
                return keep
        return self._keep_part(node, saved) if saved is not None else None

    def _keep_whole(
        self, node: Node, snapshot: Snapshot, seq_id: SeqId | None, share: int
    ) -> Keep | None:
        n, config = node.n_tokens, self._config
        cost = n // share if config.memory.has_cells else 0
        n_gained = snapshot.n_lasts - self._depth_stored(node)
        if n_gained < max(config.min_snapshot, cost) or snapshot.n_bytes > config.host_bytes:
            return None
        if config.memory.has_part:
            own_part = (node.stored.key,) if node.stored is not None else ()
            # what it spares counts in full, as parts of it live on it
            return Keep(node, node.tokens, snapshot, seq_id, n, own_part)
        replaced = self._superseded(node)
        n_spared = n - self._depth_stored(node, but=replaced)
        return Keep(node, node.tokens, snapshot, seq_id, n_spared, replaced)

    def _keep_part(self, node: Node, saved: Snapshot) -> Keep | None:
        stored = node.stored
        if stored is None:
            n_spared = saved.n_lasts - self._depth_stored(node, needs_carrier=False)
            is_useful = n_spared >= self._config.min_snapshot
            return Keep(node, node.tokens, saved, None, n_spared) if is_useful else None
        if stored.snapshot.is_part or not self._has_carrier(node, but=node):
            return None
        # a whole state that a longer one supersedes goes on as its own part
        return Keep(node, node.tokens, saved, None, node.n_tokens, (stored.key,))

    def keep(self, keep: Keep, key: str, now: float) -> None:
        """It is being written; ``lose`` follows if that fails. What it replaces is there until
        ``lose`` tells otherwise."""
        snapshot = keep.snapshot
        stored = Snapshot(snapshot.n_tokens, snapshot.n_bytes, snapshot.is_part)
        self._place(keep.node, Stored(key, stored))
        for node in list(keep.node.ancestors())[1:]:
            if self._can_shrink(node):
                self.consider(node, now)

    def _can_shrink(self, node: Node) -> bool:
        """Whether its file has a whole state of which a part would do."""
        return (
            node.stored is not None
            and not node.stored.snapshot.is_part
            and (node.snapshot is not None and node.snapshot.is_part)
        )

    def _superseded(self, node: Node) -> tuple[str, ...]:
        """Files of states that a longer one at this node contains; those at forks outlive it."""
        if not self._config.memory.can_trim:
            return ()
        above = [each for each in node.ancestors() if each is not node and each.stored is not None]
        return tuple(
            each.stored.key for each in above if each.stored is not None and len(each.children) == 1
        )

    def _depth_stored(
        self, node: Node, but: Collection[str] = (), *, needs_carrier: bool = True
    ) -> int:
        """How many of this node's tokens files spare already."""
        below: Node | None = None
        for each in node.ancestors():
            stored = each.stored
            if stored is not None and stored.key not in but:
                is_part = stored.snapshot.is_part and needs_carrier
                if not is_part or self._has_carrier(each):
                    return each.n_tokens
            if self._config.memory.can_trim:
                others = [child for child in each.children.values() if child is not below]
                if any(n.stored is not None for child in others for n in child.subtree()):
                    return each.n_tokens
            below = each
        return 0

    def _has_carrier(self, node: Node, but: Node | None = None) -> bool:
        """Whether the file of a whole state begins with this node's tokens."""
        return any(
            below is not but and below.stored is not None and not below.stored.snapshot.is_part
            for below in node.subtree()
        )

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        for key, node in self._nodes.items():
            assert node.stored is not None
            assert node.stored.key == key
            assert node.stored.snapshot.n_tokens == node.n_tokens
        for node in self._tree.root.subtree():
            assert node.stored is None or self._nodes[node.stored.key] is node


def _parked_at(node: Node) -> Slot | None:
    return next((slot for slot in node.slots if not slot.is_leased), None)

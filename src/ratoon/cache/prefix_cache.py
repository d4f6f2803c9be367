"""Which state a prompt starts from, and what happens to a state afterwards.

Pure decisions: each change of a sequence is appended to a list of operations that the engine takes
(``take_ops``) and executes in order before its next forward pass. The books here are already those
after the operations.
"""

from __future__ import annotations

from ratoon.cache.cells import CellMap
from ratoon.cache.config import CacheConfig
from ratoon.cache.disk import DiskTier
from ratoon.cache.eviction import has_carrier, overlap, worth
from ratoon.cache.host import HostTier
from ratoon.cache.lease import Full, Lease, Wait
from ratoon.cache.placement import (
    ALL,
    CacheOp,
    Copy,
    Drop,
    Restore,
    Rewind,
    Save,
    SeqId,
    Snapshot,
)
from ratoon.cache.radix import Node, RadixTree
from ratoon.cache.slots import Slot, SlotPool
from ratoon.cache.source import Source, best_source, states_at_forks, states_on_path, worthy_leader

COMPACT_SLACK = 2048  # cells; below this a high cell costs less than moving everything


class PrefixCache:
    """The radix tree, the sequence pool, the host and the disk tier, under one policy."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.memory = config.memory
        self.tree = RadixTree()
        self.pool = SlotPool(config.n_seq)
        self.host = HostTier(self.tree, config.host_bytes, config.memory)
        self.disk = DiskTier(self.tree, config)
        has_cells = config.is_unified and config.memory.has_cells
        self.cells = CellMap(config.n_cells, config.n_ubatch) if has_cells else None
        self.n_compactions = 0
        self._ops: list[CacheOp] = []
        self._leases: dict[Slot, Lease] = {}

    def take_ops(self) -> tuple[CacheOp, ...]:
        """The operations decided since the last call, in order."""
        ops, self._ops = tuple(self._ops), []
        return ops

    def take_lost(self) -> list[bytes]:
        """The bookmarks, since the last call, that no state reaches any more."""
        lost, self.tree.lost = self.tree.lost, []
        return lost

    def match_length(self, tokens: list[int]) -> int:
        """How many tokens of a prompt some tier could spare now or soon."""
        return self.tree.match(tokens).n_tokens

    # --- a request's life: acquire, advance, release -------------------------------------------

    def acquire(
        self, tokens: list[int], boundaries: tuple[int, ...], now: float, n_lasting: int = ALL
    ) -> Lease | Wait | Full:
        """A sequence for a prompt, holding as much of it as any state has; at least the last token
        is left to compute, for its logits. ``n_lasting``: see ``Slot``."""
        match = self.tree.match(tokens)
        limit = min(match.n_tokens, len(tokens) - 1)
        states = states_on_path(match, limit)
        source = best_source(states, self.config)
        if source.files and self.memory.can_trim:
            states += states_at_forks(match)
            source = best_source(states, self.config)
        leader = worthy_leader(states, source, self.config)
        if leader is not None:
            return self._follow(*leader)
        if not self.disk.is_at_hand(source.files, now):
            return Wait(source.n_tokens)
        slot = self._occupy(source, tokens, now)
        if slot is None:
            return Full()
        self.disk.use(source.files)
        origins = tuple(each for each in (source.snapshot, source.part) if each is not None)
        slot.n_lasting = n_lasting
        lease = Lease(slot, source.n_tokens, source.layer, origins)
        self._settle(lease, self.tree.insert(tokens))
        self._touch(slot.node, source, now)
        self._plan_saves(lease, tokens, limit, boundaries, now)
        return lease

    def _follow(self, leader: Slot, reach: int) -> Wait:
        """Wait for the leader's first ``reach`` tokens; untrimmable, it must stop right there."""
        if not self.memory.can_trim:
            self._leases[leader].cuts.add(reach)
            self._leases[leader].saves.add(reach)
        return Wait(reach, leader.seq_id)

    def _settle(self, lease: Lease, node: Node) -> None:
        """The lease's sequence now heads for ``node``, the end of its prompt."""
        old = lease.slot.node
        self.pool.move(lease.slot, node)
        self.tree.lock(node)
        self.tree.prune(old)
        self._leases[lease.slot] = lease

    def advance(self, parts: list[tuple[Lease, int]]) -> None:
        """The rows of one forward pass are computed, in this order."""
        if self.cells is not None:
            self.cells.extend((lease.slot.seq_id, n) for lease, n in parts)
        for lease, n in parts:
            lease.slot.n_tokens += n

    def checkpoint(self, lease: Lease, tokens: list[int], now: float) -> None:
        """Save the state where the lease has just arrived, if it is one of its save points."""
        n = lease.slot.n_tokens
        if n in lease.saves:
            lease.saves.discard(n)
            self._save_passing(lease.slot, self.tree.insert(tokens[:n]), now)

    def release(
        self, lease: Lease, tokens: list[int], now: float, bookmark: bytes | None = None
    ) -> None:
        """The request ended; its sequence stays parked at the end of what was computed of
        ``tokens`` (prompt and reply). ``bookmark`` names that end."""
        slot = lease.slot
        if slot.n_tokens == 0:
            self.discard(lease)
            return
        end = self.tree.insert(tokens[: slot.n_tokens])
        if bookmark is not None:
            end.bookmarks[end.n_tokens] = bookmark
        old = slot.node
        self.pool.move(slot, end)
        slot.is_leased = False
        slot.parked_s = end.last_used_s = now
        del self._leases[slot]
        self.tree.unlock(old)
        self._drop_twins(slot)
        self.disk.consider(end, now)

    def preempt(self, lease: Lease, tokens: list[int], now: float) -> None:
        """Take the device away from a running request; its state goes to the host."""
        slot = lease.slot
        slot.n_lasting = ALL  # it will be gone on with
        self.release(lease, tokens, now)
        if not slot.is_leased and self.pool.get(slot.seq_id) is slot:
            self._offload(slot, now)

    def discard(self, lease: Lease) -> None:
        """The state of this sequence is unknown: forget it."""
        slot = lease.slot
        del self._leases[slot]
        self.tree.unlock(slot.node)
        self._free(slot)

    def discard_parked(self, seq_ids: set[SeqId]) -> None:
        """Likewise for parked sequences."""
        for slot in self.pool.parked:
            if slot.seq_id in seq_ids:
                self._free(slot)

    def reset(self) -> None:
        """The device's contents are unknown: forget every sequence, the operations still to be
        executed, and the snapshots they would have filled. No request may hold a lease."""
        for slot in self.pool.parked:
            self._free(slot)
        self._ops.clear()
        self.host.forget_unfilled()
        self.disk.release()

    def fill(self, snapshot: Snapshot, data: memoryview, now: float) -> None:
        """A decided save was executed."""
        node = self.host.fill(snapshot, data)
        if node is not None:
            self.disk.consider(node, now)

    def forget(self, snapshot: Snapshot) -> None:
        """This snapshot is not to be trusted."""
        self.host.remove(snapshot)
        self.disk.distrust(snapshot)

    # --- getting the sequence ------------------------------------------------------------------

    def _occupy(self, source: Source, tokens: list[int], now: float) -> Slot | None:
        """A leased slot holding ``source``; ``None`` when running requests fill the device."""
        slot = source.slot
        need = len(tokens) - source.n_tokens
        if source.snapshot is not None:
            need = max(len(tokens), source.snapshot.n_tokens)
        need += self._owed()
        takes_over = slot is not None and self._may_take_over(slot, source.n_tokens)
        if not takes_over and not self._make_room(need, slot, now, needs_id=True):
            if slot is None or slot.is_leased:
                return None
            self._save_tail(slot, source, now)  # the last resort: its own tail
            takes_over = True
        if takes_over and slot is not None:
            if not self._make_room_by_cut(need, slot, source.n_tokens, now):
                return None
            if slot.n_tokens > source.n_tokens:
                self._cut(slot, source.n_tokens, source.part)
            slot.is_leased = True
            return slot
        taken = self.pool.take(self.tree.root, source.n_tokens)
        self._fill(taken, source)
        return taken

    def _make_room_by_cut(self, n_cells: int, slot: Slot, n_keep: int, now: float) -> bool:
        """Like ``_make_room``, counting what cutting ``slot`` itself would free."""
        if self._make_room(n_cells - self._freed(slot, n_keep), slot, now, needs_id=False):
            return True
        # what others shared with the slot's tail is its own by now
        return self._has_room(n_cells - self._freed(slot, n_keep), needs_id=False)

    def _freed(self, slot: Slot, n_keep: int) -> int:
        return self.cells.count_own(slot.seq_id, n_keep) if self.cells is not None else 0

    def _owed(self) -> int:
        """Cells that running requests still need for their prompts."""
        return sum(max(0, slot.node.n_tokens - slot.n_tokens) for slot in self.pool.leased)

    def _save_tail(self, slot: Slot, source: Source, now: float) -> None:
        if slot.n_lasts - source.n_tokens >= self.config.min_snapshot:
            self._save(slot, slot.node, now)

    def _fill(self, slot: Slot, source: Source) -> None:
        if source.slot is not None:
            self._ops.append(Copy(source.slot.seq_id, slot.seq_id, source.n_tokens))
            if self.cells is not None:
                self.cells.share(source.slot.seq_id, slot.seq_id, source.n_tokens)
            if source.part is not None:
                self._ops.append(Rewind(slot.seq_id, source.part))
        elif source.snapshot is not None:
            self._restore(slot, source.snapshot, source.n_tokens, source.part)

    def _may_take_over(self, slot: Slot, n_tokens: int) -> bool:
        """A parked sequence is continued in place when little of it is lost."""
        return not slot.is_leased and slot.n_tokens - n_tokens <= self.config.max_tail

    def _make_room(self, n_cells: int, keep: Slot | None, now: float, *, needs_id: bool) -> bool:
        """Free cells, and a sequence id, by offloading parked slots, least worth first."""
        if self._has_room(n_cells, needs_id):
            return True
        for slot in self._parked_by_worth(now):
            if slot is not keep:
                self._offload(slot, now)
                if self._has_room(n_cells, needs_id):
                    return True
        return False

    def _has_room(self, n_cells: int, needs_id: bool) -> bool:
        has_cells = self.cells is None or self.cells.n_free >= n_cells
        return has_cells and (self.pool.has_free or not needs_id)

    def make_cells(self, n_cells: int, now: float) -> bool:
        """Free cells for the next rows of running requests. False: one must be preempted."""
        return self._make_room(n_cells, None, now, needs_id=False)

    def offload_all(self, now: float) -> bool:
        """Clear the device of parked states; False when there were none."""
        parked = self._parked_by_worth(now)
        for slot in parked:
            self._offload(slot, now)
        return bool(parked)

    def evict(self) -> int:
        """Give up every state that no running request needs, on the device and the host; what is
        on disk stays. Returns how many states that was."""
        parked = self.pool.parked
        for slot in parked:
            self._free(slot)
        return len(parked) + self.host.evict()

    @property
    def n_free_cells(self) -> int:
        return self.cells.n_free if self.cells is not None else self.config.n_ctx

    def _parked_by_worth(self, now: float) -> list[Slot]:
        def value(slot: Slot) -> float:
            return worth(slot.node, self._bytes(slot), now, self.memory, is_part=False)

        return sorted(self.pool.parked, key=value)

    # --- moving states -------------------------------------------------------------------------

    def _offload(self, slot: Slot, now: float) -> None:
        """Move a parked state to the host, or drop it where that loses little.

        Saving copies the whole state, which costs about as much as computing 1/64 of it.
        """
        is_part = self.memory.has_part and has_carrier(slot.node, but=slot)
        gain = slot.n_lasts - overlap(slot, self.memory, on_device=False)
        cost = 0 if is_part else slot.n_tokens // 64
        is_useful = not is_part or self.config.floor(slot.n_tokens) == slot.n_tokens
        if is_useful and gain >= max(self.config.min_snapshot, cost):
            self._save(slot, slot.node, now, is_part=is_part)
        self._free(slot)

    def _save_passing(self, slot: Slot, node: Node, now: float) -> None:
        """Save the state of a sequence that goes on from here, and so carries a part."""
        self._save(slot, node, now, is_part=self.memory.has_part)

    def _save(self, slot: Slot, node: Node, now: float, *, is_part: bool = False) -> None:
        if node.snapshot is None or (node.snapshot.is_part and not is_part):
            n_bytes = self.config.n_bytes(node.n_tokens, is_part=is_part)
            if self.host.make_room(node, n_bytes, now, is_part=is_part):
                n_lasting = slot.n_lasting
                snapshot = self.host.add(node, n_bytes, is_part=is_part, n_lasting=n_lasting)
                self._ops.append(Save(slot.seq_id, snapshot))
        self.tree.prune(node)

    def _drop_twins(self, slot: Slot) -> None:
        """Parked states that the newly parked ``slot`` contains cost an id and their tail."""
        if not self.memory.can_trim:
            return
        for node in slot.node.ancestors():
            for other in list(node.slots):
                if other is not slot and not other.is_leased:
                    self._free(other)

    def _free(self, slot: Slot) -> None:
        node = slot.node
        self._cut(slot, 0)
        self.pool.free(slot)
        self.tree.prune(node)

    def _cut(self, slot: Slot, n_keep: int, part: Snapshot | None = None) -> None:
        self._ops.append(Rewind(slot.seq_id, part) if part else Drop(slot.seq_id, n_keep))
        if self.cells is not None:
            self.cells.cut(slot.seq_id, n_keep)
        slot.n_tokens = n_keep

    def _restore(
        self, slot: Slot, snapshot: Snapshot, n_tokens: int, part: Snapshot | None = None
    ) -> None:
        self._ops.append(Restore(snapshot, slot.seq_id, snapshot.n_tokens if part else n_tokens))
        if part is not None:
            self._ops.append(Rewind(slot.seq_id, part))
        if self.cells is not None:
            self.cells.restore(slot.seq_id, snapshot.n_tokens)
            self.cells.cut(slot.seq_id, n_tokens)

    def _bytes(self, slot: Slot) -> int:
        return self.config.n_bytes(slot.n_tokens)

    # --- where states are saved ----------------------------------------------------------------

    def _touch(self, node: Node, source: Source, now: float) -> None:
        for each in node.ancestors():
            each.last_used_s = now
        if source.node is not None:
            source.node.n_hits += 1
            source.node.last_used_s = now

    def _plan_saves(
        self, lease: Lease, tokens: list[int], limit: int, boundaries: tuple[int, ...], now: float
    ) -> None:
        """Pick the points of this prompt where a state is worth saving.

        A state that can be trimmed serves every shorter prefix, so only forks that keep being used
        are saved (they outlive their branches). Others must be saved exactly where they will be
        needed: at the boundaries, where this prompt left a known path, and near its end.
        """
        if self.memory.can_trim:
            self._save_fork(lease, tokens, now)
            return
        points = {self.config.floor(n) for n in (*boundaries, limit)}
        if max(points) < min(len(tokens), lease.slot.n_lasting) - self.config.min_snapshot:
            points.add(self.config.floor(len(tokens) - 1))
        points = {n for n in points if lease.n_cached <= n < len(tokens)} - {0}
        lease.cuts |= points
        lease.saves |= points
        self.checkpoint(lease, tokens, now)

    def _save_fork(self, lease: Lease, tokens: list[int], now: float) -> None:
        n = lease.n_cached
        if n < self.config.min_snapshot or n > lease.slot.n_lasting:
            return
        match = self.tree.match(tokens[:n])
        if not match.is_whole or len(match.node.children) < 2:
            return
        match.node.n_hits += 1
        if match.node.n_hits >= 2:  # the third branch: what two siblings shared is shared again
            self._save(lease.slot, match.node, now)

    # --- keeping the device fast ---------------------------------------------------------------

    def tidy(self, now: float) -> None:
        """Parked cells slow every running request down: offload states idle for a while, all but
        the worthiest few that share most of their cells; then compact when the highest used cell
        is far above what is used."""
        if self.cells is None or not self.pool.leased:
            return
        burden = 0
        for slot in reversed(self._parked_by_worth(now)):
            burden += slot.n_tokens - overlap(slot, self.memory, on_device=True)
            if burden > self.config.max_burden and now - slot.parked_s >= self.config.park_s:
                self._offload(slot, now)
        slots = self.pool.leased + self.pool.parked
        n_after = sum(slot.n_tokens for slot in slots)  # restored states share no cells
        if self.memory.can_trim and self.cells.top > 2 * n_after + COMPACT_SLACK:
            self._compact(slots)

    def _compact(self, slots: list[Slot]) -> None:
        saved = [
            (slot, Snapshot(slot.n_tokens, self._bytes(slot))) for slot in slots if slot.n_tokens
        ]
        for slot, snapshot in saved:
            self._ops.append(Save(slot.seq_id, snapshot))
        for slot, _ in saved:
            self._cut(slot, 0)
        for slot, snapshot in saved:
            self._restore(slot, snapshot, snapshot.n_tokens)
            slot.n_tokens = snapshot.n_tokens
        self.n_compactions += 1

    # --- looking in ----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        self.tree.check()
        self.pool.check()
        self.host.check()
        self.disk.check()
        assert set(self._leases) == set(self.pool.leased)
        if self.cells is not None:
            for slot in self.pool.leased + self.pool.parked:
                assert self.cells.count(slot.seq_id) == slot.n_tokens

    def stats(self) -> dict[str, int]:
        """Figures for the metrics and the console."""
        slots = self.pool.leased + self.pool.parked
        return {
            "device_tokens": self.cells.n_used if self.cells else sum(s.n_tokens for s in slots),
            "device_cells": self.config.n_cells,
            "device_top": self.cells.top if self.cells else 0,
            "device_slots_leased": len(self.pool.leased),
            "device_slots_parked": len(self.pool.parked),
            "host_bytes": self.host.n_bytes,
            "host_max_bytes": self.config.host_bytes,
            "host_snapshots": len(self.host),
            "host_evictions": self.host.n_evicted,
            "disk_due": self.disk.n_due,
            "compactions": self.n_compactions,
            "tree_nodes": sum(1 for _ in self.tree.root.subtree()) - 1,
        }

"""Sequence ids and what they hold."""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.cache.placement import ALL, SeqId
from ratoon.cache.radix import Node


@dataclass(eq=False, slots=True)
class Slot:
    """One sequence on the device.

    ``n_tokens`` are computed. While leased, ``node`` is the end of the request's prompt, which the
    slot approaches and then passes; once parked, ``node`` is exactly its end. What lies behind the
    first ``n_lasting`` tokens stays as long as the device has room, and is not worth saving.
    """

    seq_id: SeqId
    node: Node
    n_tokens: int
    is_leased: bool = True
    parked_s: float = 0.0
    n_lasting: int = ALL

    @property
    def n_lasts(self) -> int:
        """Tokens that are worth saving."""
        return min(self.n_tokens, self.n_lasting)


class SlotPool:
    """Every sequence id is free, leased or parked, never two of these."""

    def __init__(self, n_seq: int) -> None:
        self._free = [SeqId(i) for i in reversed(range(n_seq))]
        self._used: dict[SeqId, Slot] = {}
        self.n_seq = n_seq

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def leased(self) -> list[Slot]:
        return [slot for slot in self._used.values() if slot.is_leased]

    @property
    def parked(self) -> list[Slot]:
        return [slot for slot in self._used.values() if not slot.is_leased]

    def get(self, seq_id: SeqId) -> Slot | None:
        return self._used.get(seq_id)

    def take(self, node: Node, n_tokens: int) -> Slot:
        """A free id, now leased at ``node``. The caller made sure that one is free."""
        slot = Slot(self._free.pop(), node, n_tokens)
        self._used[slot.seq_id] = slot
        node.slots.append(slot)
        return slot

    def move(self, slot: Slot, node: Node) -> None:
        slot.node.slots.remove(slot)
        node.slots.append(slot)
        slot.node = node

    def free(self, slot: Slot) -> None:
        slot.node.slots.remove(slot)
        del self._used[slot.seq_id]
        self._free.append(slot.seq_id)

    def check(self) -> None:
        """Raise AssertionError where an invariant is broken."""
        assert len(self._free) + len(self._used) == self.n_seq
        assert not set(self._free) & set(self._used)
        for slot in self._used.values():
            assert slot in slot.node.slots
            assert slot.is_leased or slot.n_tokens == slot.node.n_tokens

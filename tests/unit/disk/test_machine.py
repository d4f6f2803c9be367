"""Any sequence of calls, restarts and damage, against a dictionary.

What is loaded is what was put, or nothing; nothing only after an eviction, damage or ``forget``.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ratoon.disk.files import StateFiles
from ratoon.disk.folder import StateFolder
from ratoon.disk.format import State
from ratoon.disk.index import FILE
from ratoon.disk.store import DiskConfig, DiskStore
from tests.unit.disk.states import LONG_S, OTHER, PRINT, Clock, make_state

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
BUDGET = 6000


def state_of(tokens: tuple[int, ...]) -> State:
    """Whoever saves these tokens saves the same bytes, some none at all."""
    return make_state(tokens, (0, 1, 700, 2000)[sum(tokens) % 4])


class DiskMachine(RuleBasedStateMachine):
    """Two stores on one folder: ``mine`` of one model, ``theirs`` of another."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.sure: dict[str, bytes] = {}  # what must be there
        self.damaged: set[str] = set()

    @initialize()
    def open(self) -> None:
        self.n_evicted = 0
        self.mine = DiskStore(self.folder, PRINT, DiskConfig(BUDGET), self.clock)
        self.theirs = DiskStore(self.folder, OTHER, DiskConfig(BUDGET), self.clock)

    def on_disk(self) -> set[str]:
        return set(StateFiles(self.folder).sizes())

    def settle(self) -> None:
        """Wait for both; what is gone was evicted, and its owner is told if it evicted itself."""
        for store in (self.mine, self.theirs):
            assert store.flush(LONG_S)
        n_evicted = self.mine.stats()["disk_evicted"] + self.theirs.stats()["disk_evicted"]
        there = self.on_disk()
        gone = set(self.sure) - there
        lost = {*self.mine.take_lost(), *self.theirs.take_lost()}
        assert len(gone) <= n_evicted - self.n_evicted
        assert not lost & set(self.sure) - gone
        self.n_evicted = n_evicted
        for key in gone:
            del self.sure[key]
        self.damaged &= there

    @rule(tokens=TOKENS, is_mine=st.booleans())
    def put(self, tokens: tuple[int, ...], is_mine: bool) -> None:
        store = self.mine if is_mine else self.theirs
        state = state_of(tokens)
        assert store.put(state) == store.key(tokens)
        self.settle()
        key = store.key(tokens)
        if key not in self.damaged and key in self.on_disk():
            self.sure[key] = bytes(state.data)

    @rule(tokens=TOKENS, is_mine=st.booleans(), ahead=st.booleans())
    def load(self, tokens: tuple[int, ...], is_mine: bool, ahead: bool) -> None:
        store = self.mine if is_mine else self.theirs
        key = store.key(tokens)
        view = store.prefetch(key).result(LONG_S) if ahead else store.load(key)
        data = None if view is None else bytes(view)
        assert data == self.sure.get(key)
        del view
        self.settle()

    @rule(tokens=TOKENS)
    def forget(self, tokens: tuple[int, ...]) -> None:
        key = self.mine.key(tokens)
        self.mine.forget(key)
        self.sure.pop(key, None)
        assert self.mine.load(key) is None
        self.settle()
        assert key not in self.on_disk()

    @rule(tokens=TOKENS)
    def touch(self, tokens: tuple[int, ...]) -> None:
        self.clock.now += 1
        self.mine.touch(self.mine.key(tokens))

    @rule(n_bytes=st.integers(0, BUDGET))
    def evict_from_outside(self, n_bytes: int) -> None:
        folder = StateFolder(self.folder, self.clock)
        folder.open()
        folder.make_room(0, n_bytes)
        folder.close()
        self.sure = {key: data for key, data in self.sure.items() if key in self.on_disk()}

    @precondition(lambda self: self.on_disk())
    @rule(which=st.integers(0, 99), position=st.integers(0, 3000), bit=st.integers(0, 7))
    def flip_a_bit(self, which: int, position: int, bit: int) -> None:
        key = sorted(self.on_disk())[which % len(self.on_disk())]
        path = StateFiles(self.folder).path(key)
        raw = bytearray(path.read_bytes())
        if key in self.damaged:
            return  # a second flip might undo the first
        raw[position % len(raw)] ^= 1 << bit
        path.write_bytes(raw)
        self.damage(key)

    @precondition(lambda self: self.on_disk())
    @rule(which=st.integers(0, 99), length=st.integers(0, 400))
    def tear(self, which: int, length: int) -> None:
        key = sorted(self.on_disk())[which % len(self.on_disk())]
        path = StateFiles(self.folder).path(key)
        raw = path.read_bytes()
        if length < len(raw):
            path.write_bytes(raw[:length])
            self.damage(key)

    def damage(self, key: str) -> None:
        self.sure.pop(key, None)
        self.damaged.add(key)

    @rule(lose_index=st.booleans())
    def reopen(self, lose_index: bool) -> None:
        self.mine.close(LONG_S)
        self.theirs.close(LONG_S)
        if lose_index:
            (self.folder / FILE).unlink(missing_ok=True)
        self.open()
        found: set[str] = set()
        for store in (self.mine, self.theirs):
            entries = list(store.entries())
            assert all(store.key(entry.tokens) == entry.key for entry in entries)
            found |= {entry.key for entry in entries}
        assert set(self.sure) <= found
        self.settle()

    @invariant()
    def the_budget_holds_and_no_scrap_is_left(self) -> None:
        if not hasattr(self, "mine"):
            return
        assert sum(StateFiles(self.folder).sizes().values()) <= BUDGET
        assert list(self.folder.glob(".*.part")) == []

    def teardown(self) -> None:
        if hasattr(self, "mine"):
            self.mine.close(LONG_S)
            self.theirs.close(LONG_S)
        shutil.rmtree(self.folder)


DiskMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDiskMachine = DiskMachine.TestCase

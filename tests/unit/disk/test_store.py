"""The disk tier as the engine uses it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratoon.disk.files import StateFiles
from ratoon.disk.format import Kind, check_payload
from ratoon.disk.store import DiskStore
from tests.unit.disk.states import (
    LONG_S,
    OTHER,
    Clock,
    keep,
    loaded,
    make_state,
    opened,
    payload,
)

STATES = [make_state(range(n), 1000) for n in (10, 20, 30)]


class Gate:
    """Holds the writer thread back in front of its next file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open, self.has_arrived = threading.Event(), threading.Event()
        self.n_written = 0
        original: Callable[..., bool] = StateFiles.write

        def write(*arguments: object, **options: object) -> bool:
            self.has_arrived.set()
            assert self.is_open.wait(LONG_S)
            self.n_written += 1
            return original(*arguments, **options)

        monkeypatch.setattr(StateFiles, "write", write)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.is_open.set()


def test_a_state_comes_back_now_and_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as store:
        assert list(store.entries()) == []
        keys = keep(store, *STATES)
        assert [loaded(store, key) for key in keys] == [bytes(s.data) for s in STATES]
        clock.now += 1
        store.touch(keys[0])
        store.touch(keys[0])
    clock.now += 9
    with opened(tmp_path, clock=clock) as store:
        entries = {entry.key: entry for entry in store.entries()}
        assert next(iter(entries)) == keys[0], "last used first"
        assert [entries[key].tokens for key in keys] == [state.tokens for state in STATES]
        assert [entries[key].n_hits for key in keys] == [2, 0, 0]
        assert [entries[key].age_s for key in keys] == [9, 10, 10]
        assert all(store.key(entries[key].tokens) == key for key in keys)
        assert [store.prefetch(key).result(LONG_S) for key in keys] == [s.data for s in STATES]
        assert store.take_lost() == []


def test_another_fingerprint_sees_nothing_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as mine, opened(tmp_path, OTHER) as theirs:
        (key,) = keep(mine, STATES[0])
        assert mine.key(STATES[0].tokens) != theirs.key(STATES[0].tokens)
        assert theirs.load(key) is None
        assert theirs.take_lost() == [key]
        assert "another model" in caplog.text
        assert loaded(mine, key) == STATES[0].data
    with opened(tmp_path, OTHER) as theirs:
        assert list(theirs.entries()) == []


def test_whole_and_partial_states_lie_side_by_side(tmp_path: Path) -> None:
    tokens = [1, 2, 3]
    with opened(tmp_path) as store:
        keys = keep(store, make_state(tokens, 90), make_state(tokens, 10, Kind.PARTIAL))
        assert [len(loaded(store, key) or b"") for key in keys] == [90, 10]
    with opened(tmp_path) as store:
        assert {entry.kind for entry in store.entries()} == set(Kind)


def test_a_state_is_written_once(tmp_path: Path, gate: Gate) -> None:
    gate.is_open.set()
    with opened(tmp_path) as one, opened(tmp_path) as two:
        keep(one, STATES[0], STATES[0])
        keep(one, STATES[0])
        keep(two, STATES[0])
    assert gate.n_written == 1


def test_what_is_pending_can_be_loaded(tmp_path: Path, gate: Gate) -> None:
    with opened(tmp_path) as store:
        key = store.put(STATES[0])
        assert key is not None
        assert loaded(store, key) == STATES[0].data
        assert not store.flush(0.01)
        gate.is_open.set()
        assert store.flush(LONG_S)
        assert loaded(store, key) == STATES[0].data


def test_a_writer_that_is_behind_pushes_back(tmp_path: Path, gate: Gate) -> None:
    with opened(tmp_path, max_pending_bytes=2500) as store:
        keys = [store.put(state) for state in STATES]
        assert None not in keys[:2]
        assert keys[2] is None
        assert store.stats()["disk_pending_bytes"] == 2000
        assert store.stats()["disk_refused"] == 1
        assert store.put(STATES[0]) == keys[0], "it is pending already"
        gate.is_open.set()
        key = store.put(STATES[2], wait_s=LONG_S)
        assert key is not None
        assert store.flush(LONG_S)
        assert store.stats()["disk_pending_bytes"] == 0
        assert loaded(store, key) == STATES[2].data


def test_one_state_may_exceed_the_bound(tmp_path: Path) -> None:
    with opened(tmp_path, max_pending_bytes=10) as store:
        keep(store, STATES[0])


def test_what_exceeds_the_budget_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=999) as store:
        assert store.put(STATES[0]) is None
    with opened(tmp_path, max_bytes=1001) as store:  # the head does not fit in
        key = store.put(STATES[0])
        assert store.flush(LONG_S)
        assert store.take_lost() == [key]
        assert store.load(str(key)) is None


def test_eviction_is_told(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, max_bytes=2600, clock=clock) as store:
        keys = keep(store, *(make_state([n] * 20) for n in (1, 2)))
        store.touch(keys[0])
        assert store.flush(LONG_S)
        keys += keep(store, make_state([3] * 20))
        assert store.take_lost() == [keys[1]]
        assert store.take_lost() == []
        assert store.load(keys[1]) is None
        assert loaded(store, keys[0]) is not None
        stats = store.stats()
        assert (stats["disk_evicted"], stats["disk_written"]) == (1, 3)
        files = [file.stat().st_size for file in tmp_path.glob("*.state")]
        assert stats["disk_bytes"] == sum(files) <= 2600
        assert stats["disk_snapshots"] == len(files) == 2


def test_what_is_read_is_not_evicted(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=2600) as store:
        keys = keep(store, *(make_state([n] * 20) for n in (1, 2)))
        view = store.load(keys[0])
        keys += keep(store, make_state([3] * 20))
        assert store.take_lost() == [keys[1]]
        assert view is not None
        assert bytes(view) == payload([1] * 20, 1000)


def test_a_longer_state_replaces_a_shorter_one_when_it_is_safe(tmp_path: Path, gate: Gate) -> None:
    gate.is_open.set()
    with opened(tmp_path, max_bytes=2600) as store:
        short, other = keep(store, STATES[0], STATES[1])
        gate.is_open.clear()
        long = store.put(STATES[2], replaces=[short])
        assert long is not None
        assert gate.has_arrived.wait(LONG_S)
        assert loaded(store, short) is not None
        assert store.take_lost() == []
        gate.is_open.set()
        assert store.flush(LONG_S)
        assert store.take_lost() == [short]
        assert store.load(short) is None
        assert loaded(store, long) == STATES[2].data
        assert loaded(store, other) is not None, "nothing was evicted for it"


def test_replacing_by_what_is_there_already(tmp_path: Path, gate: Gate) -> None:
    gate.is_open.set()
    with opened(tmp_path) as store:
        short, long = keep(store, STATES[0], STATES[2])
        assert store.put(STATES[2], replaces=[short]) == long
        assert store.flush(LONG_S)
        assert store.load(short) is None
        assert loaded(store, long) == STATES[2].data
    assert gate.n_written == 2


def test_a_forgotten_state_is_gone_at_once_and_can_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        (key,) = keep(store, STATES[0])
        store.forget(key)
        assert store.load(key) is None
        assert store.put(STATES[0]) == key
        assert loaded(store, key) == STATES[0].data
        assert store.flush(LONG_S)
        assert loaded(store, key) == STATES[0].data
        store.forget(key)
        store.forget(key)
        assert store.flush(LONG_S)
        assert list(tmp_path.glob("*.state")) == []


def test_what_is_forgotten_while_pending_is_not_kept(tmp_path: Path, gate: Gate) -> None:
    with opened(tmp_path) as store:
        keys = [store.put(state) for state in STATES[:2]]
        assert gate.has_arrived.wait(LONG_S)  # the first is being written, the second waits
        for key in keys:
            store.forget(str(key))
            assert store.load(str(key)) is None
        gate.is_open.set()
        assert store.flush(LONG_S)
        assert gate.n_written == 1
        assert list(tmp_path.glob("*.state")) == []
        assert store.stats()["disk_pending_bytes"] == 0


def test_a_file_that_another_process_removed_is_a_miss(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keys = keep(store, *STATES)
        for file in tmp_path.glob("*.state"):
            file.unlink()
        assert store.load(keys[0]) is None
        assert store.take_lost() == [keys[0]]
        keep(store, make_state([7]))  # writing looks around
        assert sorted(store.take_lost()) == sorted(keys[1:])
        assert keep(store, STATES[0]) == [keys[0]], "and what is gone is written again"
        assert loaded(store, keys[0]) == STATES[0].data


def damaged(file: Path, offset: int) -> None:
    raw = bytearray(file.read_bytes())
    raw[offset] ^= 4
    file.write_bytes(raw)


@pytest.mark.parametrize("offset", [0, 9, 20, 40, 70, 100, 150, -1])
def test_a_damaged_file_is_removed_told_and_never_loaded(
    tmp_path: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        keys = keep(store, *STATES)
        file = StateFiles(tmp_path).path(keys[0])
        damaged(file, offset)
        with caplog.at_level(logging.WARNING):
            assert store.load(keys[0]) is None
            assert store.flush(LONG_S)
        assert len(caplog.records) == 1
        assert str(file) in caplog.text
        assert store.take_lost() == [keys[0]]
        assert not file.exists()
        assert store.stats()["disk_bad"] == 1
        assert loaded(store, keys[1]) == STATES[1].data
        assert keep(store, STATES[0]) == [keys[0]]
        assert loaded(store, keys[0]) == STATES[0].data


def test_damage_is_found_at_the_start(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keys = keep(store, *STATES)
    damaged(StateFiles(tmp_path).path(keys[0]), 100)
    with opened(tmp_path) as store:
        assert {entry.key for entry in store.entries()} == set(keys[1:])
        assert store.take_lost() == [keys[0]]


def test_close_drops_what_is_not_written(
    tmp_path: Path, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        keys = [store.put(state) for state in STATES]
        assert gate.has_arrived.wait(LONG_S)
        store.close(0)
        assert "3 states are not kept" in caplog.text
        assert store.put(make_state([9])) is None
        assert store.put(make_state([9]), wait_s=LONG_S) is None
        assert store.prefetch("0" * 32).result(LONG_S) is None
        assert not store.flush(0)
        gate.is_open.set()
    with opened(tmp_path) as store:
        assert [entry.key for entry in store.entries()] == keys[:1]


def test_one_read_serves_all_who_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        (key,) = keep(store, STATES[0])
        go = threading.Event()
        original = StateFiles.load

        def load(self: StateFiles, key: str, fingerprint: str | None) -> object:
            assert go.wait(LONG_S)
            return original(self, key, fingerprint)

        monkeypatch.setattr(StateFiles, "load", load)
        futures = {id(store.prefetch(key)) for _ in range(3)}
        assert len(futures) == 1
        future = store.prefetch(key)
        assert not future.done()
        go.set()
        assert future.result(LONG_S) == STATES[0].data
        assert store.stats()["disk_loaded"] == 1


def test_closing_does_not_wait_for_a_long_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_begun, go = threading.Event(), threading.Event()
    original = check_payload

    def check(*args: Any) -> None:
        has_begun.set()
        assert go.wait(LONG_S)
        original(*args)

    with opened(tmp_path) as store:
        (key,) = keep(store, STATES[0])
        monkeypatch.setattr("ratoon.disk.files.check_payload", check)
        future = store.prefetch(key)
        assert has_begun.wait(LONG_S)
    go.set()
    assert future.result(LONG_S) is None
    assert caplog.records == []


def test_who_waits_for_a_read_is_told_whatever_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def load(*_: object) -> object:
        raise ValueError("mmap length is greater than file size")

    with opened(tmp_path) as store:
        (key,) = keep(store, STATES[0])
        monkeypatch.setattr(StateFiles, "load", load)
        assert store.prefetch(key).result(LONG_S) is None
        assert store.take_lost() == [key]
        assert "mmap length" in caplog.text


def test_a_bug_in_a_job_does_not_end_the_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(StateFiles, "write", lambda *_: 1 / 0)
            key = store.put(STATES[0])
            assert store.flush(LONG_S)
        assert "ZeroDivisionError" in caplog.text
        assert store.take_lost() == [key]
        keep(store, STATES[0])


def test_threads_may_call_at_once(tmp_path: Path) -> None:
    faults: list[str] = []

    def work(store: DiskStore, n: int) -> None:
        for i in range(40):
            tokens = [i % 7, n % 2]
            key = store.put(make_state(tokens, 500), wait_s=LONG_S)
            if key is None:
                faults.append("refused")
                continue
            store.touch(key)
            data = loaded(store, key) if i % 2 else store.prefetch(key).result(LONG_S)
            if data not in (None, payload(tokens, 500)):
                faults.append("wrong bytes")
            if i % 5 == 0:
                store.forget(key)

    with opened(tmp_path, max_bytes=5000, max_pending_bytes=1500) as store:
        threads = [threading.Thread(target=work, args=(store, n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.flush(LONG_S)
        assert faults == []
        assert store.stats()["disk_bytes"] <= 5000
        assert store.stats()["disk_pending_bytes"] == 0
        assert store.stats()["disk_bad"] == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_no_file_stays_open(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keys = keep(store, *STATES)
        n_open = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            assert [loaded(store, key) for key in keys] == [bytes(s.data) for s in STATES]
        assert len(os.listdir("/proc/self/fd")) <= n_open + 1


def test_the_budget_is_the_folder_s(tmp_path: Path) -> None:
    """Two models, one budget: each evicts the other's least worthy states."""
    clock = Clock()
    with opened(tmp_path, max_bytes=3400, clock=clock) as mine:
        (old, _) = keep(mine, make_state([1] * 20), make_state([2] * 200))
        with opened(tmp_path, OTHER, max_bytes=3400, clock=clock) as theirs:
            keep(theirs, make_state([1] * 20))
        assert mine.load(old) is None
    assert sum(file.stat().st_size for file in tmp_path.glob("*.state")) <= 3400

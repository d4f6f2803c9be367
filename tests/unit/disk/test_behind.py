"""Records written behind the caller's back, while disks fail and processes die."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ratoon.disk.behind import BehindConfig, WriteBehind
from ratoon.disk.records import FILE, Changes, Records
from tests.unit.disk.record_writer import N_BYTES, OWNER, content
from tests.unit.disk.states import LONG_S, Clock, start_writer
from tests.unit.disk.test_faults import open_to_all, read_only, warnings_of

BIG = 1 << 30

__all__ = ["open_to_all"]


@contextmanager
def opened(folder: Path, max_bytes: int = BIG, **options: Any) -> Iterator[WriteBehind]:
    """A store, closed at the end. ``clock`` aside, options are ``BehindConfig``'s."""
    clock = options.pop("clock", time.time)
    store = WriteBehind(folder, OWNER, BehindConfig(max_bytes, **options), clock)
    try:
        yield store
    finally:
        store.close(LONG_S)


def put(store: WriteBehind, *names: str) -> None:
    for name in names:
        store.put(name, content(name))


def names(folder: Path) -> list[str]:
    """What is on disk, least recently used first; every byte is right."""
    records = Records(folder)
    found = records.load(OWNER)
    records.close()
    assert all(data == content(name) for name, data in found)
    return [name for name, _ in found]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written until this is set."""
    event = threading.Event()
    apply = Records.apply

    def wait(self: Records, owner: str, changes: Changes, max_bytes: int) -> bool:
        assert event.wait(LONG_S)
        return apply(self, owner, changes, max_bytes)

    monkeypatch.setattr(Records, "apply", wait)
    yield event
    event.set()


def test_what_is_put_touched_and_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, "a", "b", "c")
        store.touch("a")
        store.remove("c")
        assert store.flush(LONG_S)
        assert names(tmp_path) == [name for name, _ in store.load()] == ["b", "a"]
    with opened(tmp_path) as store:
        assert [name for name, _ in store.load()] == ["b", "a"]
        store.touch("b")
    assert names(tmp_path) == ["a", "b"], "closing writes the uses"


def test_nothing_waits_for_the_disk_and_the_last_word_counts(
    tmp_path: Path, held: threading.Event
) -> None:
    with opened(tmp_path) as store:
        for _ in range(3):
            put(store, "a", "b")
            store.remove("b")
        put(store, "c")
        assert not store.flush(0.05)
        held.set()
        assert store.flush(LONG_S)
        assert names(tmp_path) == ["a", "c"]


def test_closing_writes_what_is_pending_and_then_nothing_is_taken(
    tmp_path: Path, held: threading.Event
) -> None:
    with opened(tmp_path) as store:
        put(store, "a")
        threading.Timer(0.05, held.set).start()
        put(store, "b")
        store.close(LONG_S)
        assert names(tmp_path) == ["a", "b"]
        put(store, "c")
        store.touch("a")
        store.close(LONG_S)
        assert names(tmp_path) == ["a", "b"]


def test_closing_does_not_wait_for_ever(tmp_path: Path, held: threading.Event) -> None:
    with opened(tmp_path) as store:
        put(store, "a")
        store.close(0.05)
        assert not held.is_set()
        held.set()


def test_a_full_queue_drops_the_oldest(
    tmp_path: Path, held: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, max_pending_bytes=3 * N_BYTES) as store:
        put(store, "first")
        while store._contents:  # until the writer has taken it and hangs
            time.sleep(0.001)
        put(store, *"abcde")
        assert store._n_pending_bytes <= 3 * N_BYTES
        held.set()
        assert store.flush(LONG_S)
        assert names(tmp_path) == ["first", "d", "e"]
        assert store._n_pending_bytes == 0
    assert len(warnings_of(caplog)) == 1
    assert "some replies are not kept" in caplog.text


def test_the_disk_is_bounded(tmp_path: Path) -> None:
    with opened(tmp_path, 3 * N_BYTES) as store:
        for name in "abcdefgh":
            put(store, name)
            store.touch("a")
            assert store.flush(LONG_S)
        assert names(tmp_path) == ["g", "h", "a"]


# --- the disk fails ----------------------------------------------------------------------------


def test_what_a_full_disk_refuses_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with opened(tmp_path, retry_s=LONG_S) as store:
        put(store, "a", "b")
        assert store.flush(LONG_S)
        with monkeypatch.context() as patch:
            patch.setattr("ratoon.disk.records._replace", full)
            put(store, "c")
            store.remove("a")
            for _ in range(3):
                assert not store.flush(LONG_S)
            put(store, "b", "d")
            store.remove("c")
        assert names(tmp_path) == ["a", "b"]
        put(store, "e")
        assert not store._contents.keys() - {*"abcde"}, "left alone for a while"
        assert store.flush(LONG_S)
        assert names(tmp_path) == ["b", "d", "e"]
    assert len(warnings_of(caplog)) == 1
    assert "disk is full" in caplog.text


def test_a_failing_disk_is_tried_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [False, False, True]
    apply = Records.apply

    def refuse(self: Records, owner: str, changes: Changes, max_bytes: int) -> bool:
        if not refusals.pop(0) if refusals else False:
            return False
        return apply(self, owner, changes, max_bytes)

    monkeypatch.setattr(Records, "apply", refuse)
    with opened(tmp_path, retry_s=0.01) as store:
        put(store, "a")
        deadline = time.monotonic() + LONG_S
        while not names(tmp_path):
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_an_unforeseen_fault_does_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, retry_s=LONG_S) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Records, "apply", lambda *_: 1 / 0)
            put(store, "a")
            assert not store.flush(LONG_S)
        assert store.flush(LONG_S)
        assert names(tmp_path) == ["a"]
    assert "keeping records failed" in caplog.text


def test_a_failing_disk_bounds_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Records, "apply", lambda *_: False)
    with opened(tmp_path, max_pending_bytes=3 * N_BYTES, retry_s=0.0) as store:
        for n in range(30):
            put(store, f"{n}")
            store.flush(0.01)
        assert store._n_pending_bytes <= 3 * N_BYTES
        assert len(store._used_s) <= 3
    assert names(tmp_path) == []


def test_a_real_limit_on_file_size(tmp_path: Path) -> None:
    """The kernel's own refusal, in a process of its own."""
    code = (
        "from tests.unit.disk.test_behind import LONG_S, Path, opened, put\n"
        f"with opened(Path({str(tmp_path)!r})) as store:\n"
        "    put(store, 'a')\n"
        "    assert store.flush(LONG_S)\n"
        "    store.put('b', bytes(3_000_000))\n"
        "    assert not store.flush(LONG_S)\n"
        "    store.remove('b')\n"
        "    put(store, 'c')\n"
        "    assert store.flush(LONG_S)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)),
        check=True,
        timeout=LONG_S,
    )
    assert names(tmp_path) == ["a", "c"]


def test_a_read_only_folder_costs_what_is_new(
    open_to_all: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(open_to_all) as store:
        put(store, "a")
    with read_only(open_to_all), opened(open_to_all) as store:
        store.load()
        put(store, "b")
        assert not store.flush(LONG_S)
        store.load()
    assert names(open_to_all) == ["a"]
    assert all("can't be used" in line for line in warnings_of(caplog))
    assert warnings_of(caplog)


def test_a_folder_that_may_not_be_entered_is_as_good_as_none(
    open_to_all: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_to_all / "inner"
    with opened(folder) as store:
        put(store, "a")
    open_to_all.chmod(0o600)
    with read_only(folder), opened(folder) as store:
        assert store.load() == []
        put(store, "b")
        assert not store.flush(LONG_S)
    open_to_all.chmod(0o700)
    assert len(warnings_of(caplog)) == 1
    assert names(folder) == ["a"]


def test_a_folder_that_cant_be_is_told_once_and_used_when_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "f").write_text("")
    folder = tmp_path / "f" / "below"
    with opened(folder) as store:
        assert store.load() == []
        put(store, "a")
        for _ in range(3):
            assert not store.flush(LONG_S)
        assert len(warnings_of(caplog)) == 1
        (tmp_path / "f").unlink()  # as when a disk is mounted after all
        assert store.flush(LONG_S)
        assert names(folder) == ["a"]
        folder.rename(tmp_path / "moved")
        put(store, "b")
        assert store.flush(LONG_S)
        assert names(folder) == ["b"]


def test_a_file_held_by_another_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratoon.disk.database.BUSY_S", 0.05)
    with opened(tmp_path) as store:
        put(store, "a")
        assert store.flush(LONG_S)
        other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        store._records.close()  # to open it with the short patience
        put(store, "b")
        assert not store.flush(LONG_S)
        assert [name for name, _ in store.load()] == ["a"], "reading goes on"
        other.execute("ROLLBACK")
        other.close()
        assert store.flush(LONG_S)
        assert names(tmp_path) == ["a", "b"]


# --- processes ---------------------------------------------------------------------------------


start = partial(start_writer, "tests.unit.disk.record_writer")


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    workers = [start(tmp_path, seed, 60, 6 * N_BYTES) for seed in (1, 2)]
    said = [worker.communicate(timeout=LONG_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert 0 < len(names(tmp_path)) <= 6
    assert Records(tmp_path).check() == (len(names(tmp_path)), [])


def expected(seed: int, n_steps: int) -> set[str]:
    """What a single writer has on disk after so many steps."""
    rng = random.Random(seed)
    kept: set[str] = set()
    for step in range(n_steps):
        name = f"{rng.randrange(24)}"
        kept = kept - {name} if step % 7 == 6 else kept | {name}
        rng.randrange(24)
    return kept


def test_a_kill_at_any_moment_loses_only_what_was_pending(tmp_path: Path) -> None:
    rng = random.Random(3)
    for n in range(5):
        folder = tmp_path / str(n)
        seed = rng.randrange(1000)
        worker = start(folder, seed, 10_000, BIG)
        time.sleep(rng.uniform(0.02, 0.3))
        worker.send_signal(signal.SIGKILL)
        n_done = worker.communicate()[0].count("done")
        assert set(names(folder)) in (expected(seed, n_done), expected(seed, n_done + 1))
        assert Records(folder).check() == (len(names(folder)), [])


def test_many_threads_note_at_once(tmp_path: Path) -> None:
    with opened(tmp_path, 10 * N_BYTES, clock=Clock()) as store:

        def work(n: int) -> None:
            for i in range(40):
                put(store, f"{(n + i) % 5}")
                store.touch(f"{i % 7}")
                store.remove(f"{i % 3}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.flush(LONG_S)
        assert store._n_pending_bytes == 0
        assert {"3", "4"} <= set(names(tmp_path)) <= set("01234")

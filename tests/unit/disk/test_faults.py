"""Full disks, read-only folders, processes that die or get in each other's way."""

from __future__ import annotations

import errno
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ratoon.disk.files import StateFiles
from ratoon.disk.folder import Fault, faults
from ratoon.disk.index import FILE
from tests.unit.disk.states import LONG_S, Clock, keep, loaded, make_state, opened, start_writer
from tests.unit.disk.writer import N_BYTES, N_STATES

STATES = [make_state(range(n), 1000) for n in (10, 20, 30)]
NOBODY = 65_534


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def bad_files(folder: Path) -> list[Fault]:
    return [found for found in faults(StateFiles(folder)) if isinstance(found, Fault)]


start = partial(start_writer, "tests.unit.disk.writer")


# --- the disk fails ----------------------------------------------------------------------------


def full(fd: int, data: memoryview) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_once_and_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock, retry_s=60.0) as store, caplog.at_level(logging.INFO):
        (key,) = keep(store, STATES[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            lost = store.put(STATES[1])
            assert store.flush(LONG_S)
            assert store.take_lost() == [lost]
            assert store.put(STATES[1]) is None, "not tried again so soon"
            clock.now += 61
            lost = store.put(STATES[2])
            assert store.flush(LONG_S)
            assert store.take_lost() == [lost]
        assert [path.suffix for path in tmp_path.iterdir() if path.suffix != ".sqlite3"].count(
            ".part"
        ) == 0
        assert loaded(store, key) == STATES[0].data, "reading goes on"
        clock.now += 61
        keep(store, *STATES)
        assert len(warnings_of(caplog)) == 1
        assert "No space left" in warnings_of(caplog)[0]
        assert "on disk again" in caplog.text
    assert bad_files(tmp_path) == []


def test_a_disk_that_fills_up_in_the_middle_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.write
    room = 500

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            full(fd, data)
        n = original(fd, bytes(data[:room]))
        room -= n
        return n

    with opened(tmp_path) as store:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            key = store.put(STATES[0])
            assert store.flush(LONG_S)
        assert room == 0
        assert store.take_lost() == [key]
        assert [path for path in tmp_path.iterdir() if not path.name.startswith(FILE)] == []


@pytest.mark.parametrize("call", ["fsync", "open"])
def test_any_failing_call_costs_the_state_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path, retry_s=0.0) as store:
        (kept,) = keep(store, STATES[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, call, broken)
            key = store.put(STATES[1])
            assert store.flush(LONG_S)
            if call == "open":
                assert store.load(kept) is None
        assert key in store.take_lost()
        keep(store, STATES[0], STATES[1])
        assert loaded(store, kept) == STATES[0].data


def test_a_read_error_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with opened(tmp_path) as store:
        (key,) = keep(store, STATES[0])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", broken)
            assert store.load(key) is None
        assert store.take_lost() == [key]
        assert loaded(store, key) == STATES[0].data, "the file was left alone"


def test_a_real_limit_on_file_size(tmp_path: Path) -> None:
    """The kernel's own refusal, in a process of its own."""
    code = (
        "from tests.unit.disk.states import *; from pathlib import Path\n"
        f"with opened(Path({str(tmp_path)!r}), retry_s=0.0) as store:\n"
        "    big = store.put(make_state([1], 300_000))\n"
        "    assert store.flush(LONG_S) and store.take_lost() == [big]\n"
        "    keep(store, make_state([2], 1000))\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
        check=True,
        timeout=LONG_S,
    )
    assert len(list(tmp_path.glob("*.state"))) == 1
    assert bad_files(tmp_path) == []


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing in the folder can be made, changed or removed meanwhile."""
    is_root = os.geteuid() == 0
    modes = {path: path.stat().st_mode for path in (folder, *folder.iterdir())}
    for path in modes:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if is_root:
        os.seteuid(NOBODY)  # whom modes do bind
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name) / "states"


def test_a_read_only_folder_is_read(open_to_all: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(open_to_all) as store:
        keys = keep(store, *STATES[:2])
    damaged = StateFiles(open_to_all).path(keys[1])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with read_only(open_to_all), opened(open_to_all, retry_s=0.0) as store:
        assert {entry.key for entry in store.entries()} == set(keys)
        assert loaded(store, keys[0]) == STATES[0].data
        store.touch(keys[0])
        assert store.load(keys[1]) is None
        assert store.load(keys[1]) is None
        for _ in range(2):
            key = store.put(STATES[2])
            assert store.flush(LONG_S)
            assert key in store.take_lost()
        assert loaded(store, keys[0]) == STATES[0].data
    told = warnings_of(caplog)
    assert sum("can't write" in line for line in told) == 1
    assert sum("left the snapshot" in line for line in told) >= 1
    with opened(open_to_all) as store:
        keep(store, *STATES)


@pytest.mark.parametrize("what", ["file", "below a file"])
def test_a_folder_that_cant_be_is_told_once(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "f").write_text("")
    folder = tmp_path / "f" if what == "file" else tmp_path / "f" / "below"
    with opened(folder, retry_s=0.0) as store:
        assert list(store.entries()) == []
        assert store.load("0" * 32) is None
        key = store.put(STATES[0])
        assert store.flush(LONG_S)
        assert key in store.take_lost()
        assert sum("states are not kept" in line for line in warnings_of(caplog)) == 1
        (tmp_path / "f").unlink()  # as when a disk is mounted after all
        keep(store, *STATES)


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "states"
    with opened(folder, retry_s=0.0) as store:
        (key,) = keep(store, STATES[0])
        folder.rename(tmp_path / "moved")
        assert store.load(key) is None
        for _ in range(2):  # the first finds out
            store.put(STATES[1])
            assert store.flush(LONG_S)
        assert loaded(store, store.key(STATES[1].tokens)) == STATES[1].data


# --- processes ---------------------------------------------------------------------------------


def test_two_processes_write_and_evict_in_one_folder(tmp_path: Path) -> None:
    budget = 6 * N_BYTES
    workers = [start(tmp_path, seed, 150, budget) for seed in (1, 2)]
    said = [worker.communicate(timeout=LONG_S)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said
    assert all(int(line.split()[0]) > 0 for line in said), said
    assert bad_files(tmp_path) == []
    assert list(tmp_path.glob(".*.part")) == []
    with opened(tmp_path, max_bytes=budget) as store:
        keep(store, make_state([N_STATES + 1], 10))
        on_disk = sum(file.stat().st_size for file in tmp_path.glob("*.state"))
        assert on_disk == store.stats()["disk_bytes"] <= budget


def test_a_kill_at_any_moment_leaves_sound_files(tmp_path: Path) -> None:
    rng = random.Random(3)
    for _ in range(5):
        worker = start(tmp_path, rng.randrange(1000), 10_000, 12 * N_BYTES)
        time.sleep(rng.uniform(0, 0.15))
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
        assert bad_files(tmp_path) == []
    with opened(tmp_path) as store:
        assert list(tmp_path.glob(".*.part")) == []
        entries = list(store.entries())
        assert entries
        for entry in entries:
            assert loaded(store, entry.key) == make_state(entry.tokens, N_BYTES).data


CALLS = ("os.open", "os.write", "os.fsync", "pathlib.Path.replace", "pathlib.Path.unlink")
DYING = """
import os, pathlib, signal, sys
from tests.unit.disk.states import *
left = int(sys.argv[2])
def dying(call):
    def wrapped(*arguments, **options):
        global left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return call(*arguments, **options)
    return wrapped
with opened(pathlib.Path(sys.argv[1])) as store:
    old = store.key([1] * 10)
    for name in sys.argv[3:]:
        where, _, call = name.rpartition(".")
        where = eval(where)
        setattr(where, call, dying(getattr(where, call)))
    store.put(make_state([1, 2, 3], 40_000), replaces=[old])
    store.flush(LONG_S)
"""


def test_a_kill_before_each_call_of_a_write_loses_nothing_old(tmp_path: Path) -> None:
    """One state replaces another; the process dies before its first call, its second, ..."""
    found: list[tuple[int, bool, bool]] = []
    for n_calls in range(40):
        folder = tmp_path / str(n_calls)
        with opened(folder) as store:
            (old,) = keep(store, make_state([1] * 10))
            new = store.key([1, 2, 3])
        command = [sys.executable, "-c", DYING, str(folder), str(n_calls), *CALLS]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        code = subprocess.run(command, env=environment, timeout=LONG_S).returncode
        assert bad_files(folder) == []
        with opened(folder) as store:
            is_old, is_new = (store.load(key) is not None for key in (old, new))
            assert {entry.key for entry in store.entries()} == {
                key for key, is_there in ((old, is_old), (new, is_new)) if is_there
            }
        assert is_old or is_new
        found.append((code, is_old, is_new))
        if code == 0:
            break
    assert found[0] == (-signal.SIGKILL, True, False)
    assert (-signal.SIGKILL, True, True) in found
    assert found[-1] == (0, False, True)

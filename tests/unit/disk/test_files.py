"""Writing whole or not at all, and who may remove what."""

from __future__ import annotations

import fcntl
import gc
import os
import stat
from pathlib import Path

import pytest

from ratoon.disk.files import StateFiles
from ratoon.disk.format import BadSnapshot, ForeignSnapshot, State, pack_head, state_key
from tests.unit.disk.states import OTHER, PRINT, make_state

STATE = make_state(range(5))
KEY = state_key(PRINT.digest, STATE.kind, STATE.tokens)


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    files = StateFiles(tmp_path / "states")
    files.create()
    return files


def write(files: StateFiles, state: State = STATE) -> str:
    key = state_key(PRINT.digest, state.kind, state.tokens)
    assert files.write(key, (pack_head(PRINT.digest, PRINT.label, state), state.data))
    return key


def test_a_snapshot_comes_back(files: StateFiles) -> None:
    assert write(files) == KEY
    head, view = files.load(KEY, PRINT.digest)
    assert view == STATE.data
    assert head.tokens.tolist() == STATE.tokens
    assert files.head(KEY) == head
    assert files.sizes() == {KEY: files.path(KEY).stat().st_size}
    with pytest.raises(TypeError):
        view[0] = 0


def test_only_the_user_can_read_prompts(files: StateFiles) -> None:
    write(files)
    assert stat.S_IMODE(files.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(files.path(KEY).stat().st_mode) == 0o600


def test_another_name_or_fingerprint_is_refused(files: StateFiles) -> None:
    write(files)
    with pytest.raises(ForeignSnapshot):
        files.load(KEY, OTHER.digest)
    files.path(KEY).rename(files.path("0" * 32))
    with pytest.raises(BadSnapshot, match="its name"):
        files.load("0" * 32, PRINT.digest)
    with pytest.raises(FileNotFoundError):
        files.load(KEY, PRINT.digest)


def test_a_link_is_not_followed(files: StateFiles, tmp_path: Path) -> None:
    write(files)
    files.path(KEY).rename(tmp_path / "elsewhere")
    files.path(KEY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        files.load(KEY, None)


def test_what_is_read_is_not_evicted_until_its_last_view_is_gone(files: StateFiles) -> None:
    write(files)
    _, view = files.load(KEY, None)
    part = view[10:20]
    del view
    assert not files.evict(KEY)
    assert part == STATE.data[10:20]
    del part
    gc.collect()
    assert files.evict(KEY)
    assert files.evict(KEY), "gone already is as good"
    assert files.sizes() == {}


def test_what_is_removed_while_read_stays_readable(files: StateFiles) -> None:
    write(files)
    _, view = files.load(KEY, None)
    files.remove(KEY)
    files.remove(KEY)
    assert view == STATE.data


def test_a_failed_write_leaves_nothing(files: StateFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        write(files)
    assert list(files.folder.iterdir()) == []


def test_untrusted_chunks_are_checked_before_they_get_their_name(files: StateFiles) -> None:
    raw = pack_head(PRINT.digest, "", STATE) + bytes(STATE.data)
    flipped = raw[:-1] + bytes([raw[-1] ^ 1])
    with pytest.raises(BadSnapshot, match="payload"):
        files.write(KEY, [flipped[:100], flipped[100:]], check=True)
    with pytest.raises(BadSnapshot, match="name"):
        files.write("0" * 32, [raw], check=True)
    assert list(files.folder.iterdir()) == []
    assert files.write(KEY, [raw[:7], raw[7:]], check=True)
    assert files.load(KEY, None)[1] == STATE.data


def test_a_file_being_written_is_left_to_its_writer(files: StateFiles) -> None:
    part = files.folder / f".{KEY}.part"
    with part.open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert files.sweep() == 0
        assert not files.write(KEY, (pack_head(PRINT.digest, "", STATE), STATE.data))
        assert part.exists()
    write(files)  # its writer is dead now
    assert not part.exists()


def test_only_leftovers_are_swept(files: StateFiles) -> None:
    write(files)
    (files.folder / f".{'a' * 32}.part").write_bytes(b"torn")
    (files.folder / "notes.txt").write_bytes(b"mine")
    (files.folder / ".hidden.part").write_bytes(b"mine")
    assert files.sweep() == 1
    names = {path.name for path in files.folder.iterdir()}
    assert names == {f"{KEY}.state", "notes.txt", ".hidden.part"}
    assert set(files.sizes()) == {KEY}


def test_a_file_system_without_locks_will_do(
    files: StateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(fd: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    write(files)
    assert files.load(KEY, None)[1] == STATE.data
    assert files.evict(KEY)

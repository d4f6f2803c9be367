"""Files and index in agreement, whatever happens to the index; and the budget."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratoon.disk.folder import StateFolder
from ratoon.disk.format import State, file_bytes, state_key
from ratoon.disk.index import FILE, HALF_LIFE_S, Index
from tests.unit.disk.states import LONG_S, OTHER, PRINT, Clock, make_state

STATES = [make_state(range(n), 100 * n) for n in (1, 2, 3)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_folder(path: Path, clock: Clock) -> StateFolder:
    folder = StateFolder(path, clock)
    folder.open()
    return folder


def add(folder: StateFolder, *states: State) -> list[str]:
    assert all(folder.add(PRINT.digest, PRINT.label, state) for state in states)
    return [state_key(PRINT.digest, state.kind, state.tokens) for state in states]


def test_rows_and_hits_come_back(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, *STATES)
    clock.now += 10
    folder.touch([(keys[0], 2, clock.now), ("0" * 32, 1, clock.now)])
    folder.close()
    again = open_folder(tmp_path, clock)
    assert again.rows == folder.rows
    assert again.rows[keys[0]].n_hits == 2
    assert again.rows[keys[0]].used_s == clock.now
    assert again.n_bytes == sum(file_bytes(PRINT.label, state) for state in STATES)


def test_another_process_s_files_are_learnt_and_missed(tmp_path: Path, clock: Clock) -> None:
    mine, theirs = open_folder(tmp_path, clock), open_folder(tmp_path, clock)
    keys = add(theirs, *STATES)
    theirs.touch([(keys[1], 5, clock.now)])
    assert mine.sync() == set()
    assert mine.rows == theirs.rows
    theirs.remove(keys[0])
    assert mine.sync() == {keys[0]}
    assert mine.rows == theirs.rows


def damage_lost(file: Path) -> None:
    file.unlink()


def damage_torn(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def damage_noise(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(8192))


def damage_empty(file: Path) -> None:
    file.write_bytes(b"")


def damage_other_schema(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE states (key TEXT)")
    db.close()


def damage_poison(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("UPDATE states SET n_tokens = 'many', n_hits = 'x'")
    db.close()


def damage_kind(file: Path) -> None:
    with sqlite3.connect(file) as db:
        db.execute("UPDATE states SET kind = 99")
    db.close()


@pytest.mark.parametrize(
    "damage",
    [
        damage_lost,
        damage_torn,
        damage_noise,
        damage_empty,
        damage_other_schema,
        damage_poison,
        damage_kind,
    ],
)
def test_the_index_is_made_anew(tmp_path: Path, clock: Clock, damage: object) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, *STATES)
    folder.close()
    assert callable(damage)
    damage(tmp_path / FILE)
    again = open_folder(tmp_path, clock)
    assert set(again.rows) == set(keys)
    for key in keys:
        assert again.rows[key].n_bytes == folder.rows[key].n_bytes
        assert again.rows[key].n_tokens == folder.rows[key].n_tokens
        assert again.rows[key].n_spared == folder.rows[key].n_spared
    again.touch([(keys[0], 1, clock.now)])
    again.close()
    assert open_folder(tmp_path, clock).rows[keys[0]].n_hits == 1, "it works again"


def test_an_index_damaged_while_open_costs_nothing_but_hits(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, *STATES[:2])
    for suffix in ("", "-wal"):
        damage_noise(tmp_path / (FILE + suffix))
    folder.touch([(keys[0], 1, clock.now)])
    keys += add(folder, STATES[2])
    folder.close()
    assert set(open_folder(tmp_path, clock).rows) == set(keys)


def test_bit_flips_in_the_index_never_fail(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, *STATES)
    folder.close()
    sound = (tmp_path / FILE).read_bytes()
    rng = random.Random(2)
    for _ in range(60):
        torn = bytearray(sound)
        for _ in range(rng.choice((1, 40))):
            torn[rng.randrange(len(torn))] ^= 1 << rng.randrange(8)
        for suffix in ("-wal", "-shm"):
            (tmp_path / (FILE + suffix)).unlink(missing_ok=True)
        (tmp_path / FILE).write_bytes(torn)
        again = open_folder(tmp_path, clock)
        again.make_room(1, 10**9)
        again.touch([(key, 1, clock.now) for key in keys])
        assert set(again.rows) == set(keys)
        assert again.n_bytes == folder.n_bytes
        again.close()


def test_an_index_that_cant_be_opened_is_told_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        folder = open_folder(tmp_path, clock)
        keys = add(folder, *STATES)
        folder.touch([(keys[0], 1, clock.now)])
    assert len(caplog.records) == 1
    assert "can't be used" in caplog.text
    assert set(folder.rows) == set(keys)
    assert set(open_folder(tmp_path, clock).rows) == set(keys)


def test_a_bad_head_is_removed_and_told(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, *STATES)
    folder.close()
    (tmp_path / FILE).unlink()
    os.truncate(folder.files.path(keys[1]), 50)
    again = open_folder(tmp_path, clock)
    assert set(again.rows) == {keys[0], keys[2]}
    assert not folder.files.path(keys[1]).exists()
    assert "only 50 bytes" in caplog.text


def test_what_cant_be_read_is_told_once(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    folder = open_folder(tmp_path, clock)
    (key,) = add(folder, STATES[0])
    folder.files.path("0" * 32).symlink_to(folder.files.path(key))
    for _ in range(3):
        folder.sync()
    assert set(folder.rows) == {key}
    assert len(caplog.records) == 1
    assert "symbolic links" in caplog.text


def test_the_least_worth_goes_first(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    cheap, rich, used, old = (
        make_state([1], 4000),  # few tokens for its bytes
        make_state(range(400), 4000),
        make_state(range(100, 200), 4000),
        make_state(range(500, 900), 4000),
    )
    keys = add(folder, old)
    clock.now += 8 * HALF_LIFE_S
    keys += add(folder, cheap, rich, used)
    folder.touch([(keys[3], 9, clock.now)])
    order = [key for _ in range(4) for key in folder.make_room(1, folder.n_bytes)[1]]
    assert order == [keys[1], keys[0], keys[2], keys[3]]


def test_a_state_counts_for_what_it_spares(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, make_state(range(900), 4000, n_spared=10), make_state(range(99), 4000))
    folder.close()
    (tmp_path / FILE).unlink()  # it is in the file, not only in the index
    folder = open_folder(tmp_path, clock)
    assert folder.make_room(1, folder.n_bytes) == (True, [keys[0]])


def test_other_processes_hits_protect(tmp_path: Path, clock: Clock) -> None:
    mine = open_folder(tmp_path, clock)
    keys = add(mine, *(make_state([n] * 100) for n in (1, 2)))
    theirs = open_folder(tmp_path, clock)
    theirs.touch([(keys[0], 3, clock.now)])
    assert mine.make_room(1, mine.n_bytes) == (True, [keys[1]])


def test_what_is_read_and_what_is_replaced_stay(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    keys = add(folder, *(make_state([n] * 100) for n in (1, 2, 3)))
    _, view = folder.files.load(keys[0], None)
    one = folder.rows[keys[0]].n_bytes
    assert folder.make_room(2 * one, 2 * one, {keys[1]}) == (False, [keys[2]]), "one is read"
    assert folder.make_room(one, 2 * one, {keys[1]}) == (True, [])
    assert len(view) == 1000


def test_more_than_the_budget_evicts_nothing(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    add(folder, *STATES)
    assert folder.make_room(2000, 1999) == (False, [])
    assert len(folder.rows) == 3


def test_part_of_the_disk_is_left_to_others(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tmp_path, clock)
    (key,) = add(folder, STATES[0])
    usage = SimpleNamespace(total=10_000, free=1000)  # 500 are others'
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert folder.make_room(500, 10**9) == (True, [])
    assert folder.make_room(501, 10**9) == (True, [key])
    assert folder.make_room(501, 10**9) == (False, [])


def test_every_models_states_share_the_budget(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    (mine,) = add(folder, make_state(range(200)))
    clock.now += HALF_LIFE_S
    assert folder.add(OTHER.digest, OTHER.label, make_state(range(200)))
    assert folder.make_room(1, folder.n_bytes) == (True, [mine])


def test_what_cannot_be_evicted_does_not_save_the_rest(tmp_path: Path, clock: Clock) -> None:
    folder = open_folder(tmp_path, clock)
    stuck, key = add(folder, make_state([1], 4000), make_state(range(50)))
    folder.files.path(stuck).unlink()
    folder.files.path(stuck).symlink_to("elsewhere")  # can't be opened, like another user's file
    assert folder.make_room(1, folder.n_bytes) == (True, [key])
    with pytest.raises(OSError, match="symbolic"):
        folder.make_room(1, folder.n_bytes)


def test_what_is_no_file_holds_nobody_up(tmp_path: Path, clock: Clock) -> None:
    (key,) = add(open_folder(tmp_path, clock), STATES[0])
    for name in (f"{'1' * 32}.state", f".{'2' * 32}.part"):
        os.mkfifo(tmp_path / name)
    (tmp_path / f"{'3' * 32}.state").mkdir()
    (tmp_path / f"{'4' * 32}.state").symlink_to("/dev/zero")
    folders: list[StateFolder] = []
    opening = threading.Thread(target=lambda: folders.append(open_folder(tmp_path, clock)))
    opening.daemon = True
    opening.start()
    opening.join(LONG_S)
    assert [list(folder.rows) for folder in folders] == [[key]]


def test_a_closed_index_opens_again(tmp_path: Path) -> None:
    index = Index(tmp_path)
    assert index.rows() == {}
    index.close()
    assert index.rows() == {}
    index.close()
    shutil.rmtree(tmp_path)
    assert index.rows() == {}

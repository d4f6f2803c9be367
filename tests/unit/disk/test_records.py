"""Records in their file, whatever happens to it."""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ratoon.disk.records import FILE, MAX_AGE_S, Changes, Records
from tests.unit.disk.states import Clock, payload

BIG = 1 << 30
DATA = {name: payload(list(name.encode()), 3000) for name in ("a", "b", "c")}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(tmp_path: Path, clock: Clock) -> Records:
    return Records(tmp_path, clock)


def keep(
    records: Records, *names: str, owner: str = "me", now: float = 1_000_000.0, limit: int = BIG
) -> None:
    """One after the other, each a second later."""
    for n, name in enumerate(names):
        assert records.apply(owner, Changes({name: DATA[name]}, {name: now + n}), limit)


def names(records: Records, owner: str = "me") -> list[str]:
    """Least recently used first; every content is right."""
    found = records.load(owner)
    assert all(data == DATA[name] for name, data in found)
    return [name for name, _ in found]


def test_records_come_back_in_the_order_of_their_use(tmp_path: Path, records: Records) -> None:
    keep(records, "a", "b", "c")
    records.apply("me", Changes({}, {"a": 1_000_009.0, "never heard of": 1.0}), BIG)
    records.apply("me", Changes({}, {"c": 5.0}), BIG)  # from a clock that is behind
    assert names(records) == ["b", "c", "a"]
    records.close()
    assert names(Records(tmp_path, Clock())) == ["b", "c", "a"]
    assert records.total() == (3, 9000)


def test_changes_are_one_step(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(records, "a", "b")
    changes = Changes({"a": None, "c": DATA["c"]}, {"c": 1_000_005.0})
    with monkeypatch.context() as patch:
        patch.setattr("ratoon.disk.records._TRIM", "SELECT no_such_thing(?, ?)")
        assert not records.apply("me", changes, BIG)
    # a fault that no sound file has: it was made anew
    assert names(records) == []
    keep(records, "a", "b")
    assert records.apply("me", changes, BIG)
    assert names(records) == ["b", "c"]
    assert records.check() == (2, [])


def test_owners_do_not_mix(records: Records) -> None:
    keep(records, "a", "b")
    keep(records, "b", "c", owner="you", now=2_000_000.0)
    assert records.apply("you", Changes({"b": None}, {}), BIG)
    assert (names(records), names(records, "you"), names(records, "nobody")) == (
        ["a", "b"],
        ["c"],
        [],
    )
    keep(records, "a", owner="you", now=3_000_000.0, limit=3000)
    assert (names(records), names(records, "you")) == (["a", "b"], ["a"])


def test_the_least_recently_used_go_first(records: Records) -> None:
    keep(records, "a", "b")
    records.apply("me", Changes({}, {"a": 1_000_009.0}), BIG)
    keep(records, "c", now=1_000_010.0, limit=8999)
    assert names(records) == ["a", "c"]
    keep(records, "b", now=1_000_011.0, limit=2999)
    assert names(records) == []
    assert records.total() == (0, 0)


def test_what_nobody_asked_for_in_a_month_goes(records: Records, clock: Clock) -> None:
    keep(records, "a", owner="a model of old")
    clock.now += MAX_AGE_S + 1
    keep(records, "b", now=clock.now)
    assert names(records, "a model of old") == []
    assert names(records) == ["b"]


def test_no_more_than_the_records_lies_in_the_file(tmp_path: Path, records: Records) -> None:
    """What is replaced or removed leaves no trace, and takes no space."""
    for n in range(30):
        data = b"a secret of mine" * 1000
        assert records.apply(
            "me", Changes({"x": data, f"{n}": data}, dict.fromkeys(("x", f"{n}"), n)), BIG
        )
    assert records.apply("me", Changes({f"{n}": None for n in range(30)}, {}), BIG)
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT COUNT(*) FROM contents").fetchone() == (1,)
    db.close()
    assert records.prune(100.0) == 1
    records.close()
    assert (tmp_path / FILE).stat().st_size < 50_000
    assert all(b"a secret" not in file.read_bytes() for file in tmp_path.iterdir())


def test_only_the_user_may_read(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        records = Records(tmp_path / "states", Clock())
        keep(records, "a")
        assert stat.S_IMODE((tmp_path / "states").stat().st_mode) == 0o700
        files = list((tmp_path / "states").iterdir())
        assert {file.name for file in files} == {FILE, f"{FILE}-wal", f"{FILE}-shm"}
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(mask)


def test_looking_makes_no_file(tmp_path: Path) -> None:
    records = Records(tmp_path / "states", Clock())
    assert records.load("me") == []
    assert (records.total(), records.prune(1e12), records.check()) == ((0, 0), 0, (0, []))
    assert not (tmp_path / "states").exists()


# --- damage ------------------------------------------------------------------------------------


def execute(*statements: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with sqlite3.connect(file) as db:
            for statement in statements:
                assert db.execute(statement).rowcount
        db.close()

    return damage


ONE = "WHERE id = (SELECT id FROM records WHERE name = 'b')"


@pytest.mark.parametrize(
    "damage",
    [
        execute(f"UPDATE contents SET data = zeroblob(3000) {ONE}"),
        execute(f"UPDATE contents SET data = 'text' {ONE}"),
        execute(f"UPDATE contents SET data = substr(data, 2) {ONE}"),
        execute(f"UPDATE contents SET sum = zeroblob(16) {ONE}"),
        execute(f"UPDATE contents SET sum = 0 {ONE}"),
        execute(f"DELETE FROM contents {ONE}"),
        execute("UPDATE records SET n_bytes = 'many' WHERE name = 'b'"),
        execute("UPDATE records SET n_bytes = 1 WHERE name = 'b'"),
        execute("UPDATE records SET name = 'd' WHERE name = 'b'"),
        execute("UPDATE records SET name = 5 WHERE name = 'b'"),
        execute("UPDATE records SET owner = 'me' WHERE name = 'b'", "DELETE FROM contents " + ONE),
    ],
)
def test_a_bad_record_is_dropped_and_told(
    tmp_path: Path,
    records: Records,
    damage: Callable[[Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    keep(records, "a", "b", "c")
    damage(tmp_path / FILE)
    n_sound, bad = records.check()
    assert (n_sound, len(bad)) == (2, 1)
    assert "checksum" in bad[0].reason
    with caplog.at_level(logging.WARNING):
        assert names(records) == ["a", "c"]
        assert names(records) == ["a", "c"]
    assert len(caplog.records) == 1
    assert "removed 1 records" in caplog.text
    assert records.check() == (2, [])


def test_a_record_is_not_another_owners(tmp_path: Path, records: Records) -> None:
    keep(records, "a", owner="you")
    execute("UPDATE records SET owner = 'me'")(tmp_path / FILE)
    assert names(records) == []


def noise(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(8192))


def other_schema(file: Path) -> None:
    file.unlink()
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE records (key TEXT)")
    db.close()


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        noise,
        other_schema,
        lambda file: os.truncate(file, file.stat().st_size // 2),
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"SQLite format 3\0"),
    ],
)
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    before = Records(tmp_path, Clock())
    keep(before, "a", "b", "c")
    before.close()
    damage(tmp_path / FILE)
    with caplog.at_level(logging.WARNING):
        records = Records(tmp_path, Clock())
        assert set(names(records)) < {"a", "b", "c"}
        keep(records, "a", "b")
        assert names(records) == ["a", "b"]
    assert len(caplog.records) <= 1
    assert all("damaged" in record.getMessage() for record in caplog.records)
    assert records.check() == (2, [])


def test_a_damaged_file_is_found_and_repaired(tmp_path: Path, records: Records) -> None:
    keep(records, "a", "b")
    records.close()
    noise(tmp_path / FILE)
    n_sound, (fault,) = records.check()
    assert (n_sound, fault.key) == (0, FILE)
    assert (tmp_path / FILE).stat().st_size == 8192, "checking changes nothing"
    records.repair()
    assert records.check() == (0, [])


def test_flipped_bits_never_fail_and_never_give_a_wrong_byte(tmp_path: Path) -> None:
    before = Records(tmp_path, Clock())
    keep(before, "a", "b", "c")
    before.close()
    sound = (tmp_path / FILE).read_bytes()
    rng = random.Random(2)
    n_found = 0
    for _ in range(80):
        torn = bytearray(sound)
        for _ in range(rng.choice((1, 40))):
            torn[rng.randrange(len(torn))] ^= 1 << rng.randrange(8)
        for suffix in ("-wal", "-shm"):
            (tmp_path / (FILE + suffix)).unlink(missing_ok=True)
        (tmp_path / FILE).write_bytes(torn)
        records = Records(tmp_path, Clock())
        records.check()
        n_found += len(names(records))
        keep(records, "b", now=2_000_000.0)
        assert names(records)[-1:] == ["b"]
        records.close()
    assert 0 < n_found < 240


def test_a_file_that_is_replaced_meanwhile_is_followed(tmp_path: Path) -> None:
    """One process finds the file damaged and makes it anew; the other one moves over."""
    mine, theirs = Records(tmp_path, Clock()), Records(tmp_path, Clock())
    keep(mine, "a")
    keep(theirs, "b")
    (tmp_path / FILE).rename(tmp_path / "aside")
    keep(mine, "a")
    keep(theirs, "c", now=2_000_000.0)
    assert names(mine) == names(theirs) == ["a", "c"]
    mine.close()
    theirs.close()
    assert names(Records(tmp_path, Clock())) == ["a", "c"]

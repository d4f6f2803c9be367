"""Small records in one sqlite file beside the snapshots, each with a checksum.

A record belongs to an ``owner``, for whom alone it means something, and has a name of the owner's
choice. What it holds is the owner's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratoon.disk.database import Database
from ratoon.disk.folder import Fault

log = logging.getLogger("ratoon.disk")

VERSION = 1
FILE = f"records-{VERSION}.sqlite3"  # another version's file is left alone
# Owners come and go with models and their templates; this ends what nobody will ask for again.
MAX_AGE_S = 30 * 86_400.0

# Contents lie apart: a use then rewrites a short row, not the whole record.
_TABLES: Final = (
    """CREATE TABLE IF NOT EXISTS records (
        id INTEGER PRIMARY KEY, owner TEXT NOT NULL, name TEXT NOT NULL,
        n_bytes INTEGER NOT NULL, used_s REAL NOT NULL, UNIQUE (owner, name)
    )""",
    """CREATE TABLE IF NOT EXISTS contents (
        id INTEGER PRIMARY KEY, sum BLOB NOT NULL, data BLOB NOT NULL
    )""",
    """CREATE TRIGGER IF NOT EXISTS remove_content AFTER DELETE ON records
        BEGIN DELETE FROM contents WHERE id = OLD.id; END""",
)
_TABLES_AS_STORED: Final = {text.replace("IF NOT EXISTS ", "") for text in _TABLES}
_ERASE: Final = "PRAGMA secure_delete = ON"  # records hold what people said
_READ: Final = """
SELECT id, owner, name, n_bytes, sum, data FROM records LEFT JOIN contents USING (id)
"""
_TRIM: Final = """
DELETE FROM records WHERE id IN (
    SELECT id FROM (
        SELECT id, SUM(n_bytes) OVER (ORDER BY used_s DESC, id DESC) AS n_total
        FROM records WHERE owner = ?
    ) WHERE n_total > ?
)"""


@dataclass(frozen=True, slots=True)
class Changes:
    """What became of an owner's records since the last time.

    ``contents``: by name; ``None`` for one that was removed.
    ``used_s``:   by name, the time of day of the last use; of what is new, too.
    """

    contents: Mapping[str, bytes | None]
    used_s: Mapping[str, float]


class Records:
    """The file of one folder. Other processes may use it at the same time. No method raises."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._db = Database(folder / FILE, [_ERASE, *_TABLES], "replies are not kept on disk")
        self._clock = clock

    @property
    def _is_there(self) -> bool:
        return os.path.exists(self._db.file)  # false, too, where it can't be known

    def load(self, owner: str) -> list[tuple[str, bytes]]:
        """Name and content of the owner's records, least recently used first. A damaged one is
        removed."""
        if not self._is_there:
            return []
        rows = self._db.run(lambda db: list(_read_checked(db, owner)))
        bad = [row for row in rows or () if row.fault]
        if bad:
            reasons = ", ".join(sorted({row.fault for row in bad}))
            log.warning("removed %d records from %s: %s", len(bad), self._db.file, reasons)
            self.remove(row.id for row in bad)
        return [(row.name, row.data) for row in rows or () if not row.fault]

    def apply(self, owner: str, changes: Changes, max_bytes: int) -> bool:
        """Write all changes, or none if this fails; then remove what was used least recently until
        the owner's records take no more than ``max_bytes``."""
        with contextlib.suppress(OSError):  # sqlite tells
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

        def change(db: sqlite3.Connection) -> bool:
            _replace(db, owner, changes)
            db.executemany(
                "UPDATE records SET used_s = max(used_s, ?) WHERE owner = ? AND name = ?",
                [(used_s, owner, name) for name, used_s in changes.used_s.items()],
            )
            if changes.contents:
                db.execute(_TRIM, (owner, max_bytes))
                db.execute("DELETE FROM records WHERE used_s < ?", (self._clock() - MAX_AGE_S,))
            return True

        return self._db.write(change) or False

    def total(self) -> tuple[int, int]:
        """How many records there are, of all owners, and their bytes."""
        if not self._is_there:
            return 0, 0
        total = self._db.run(
            lambda db: db.execute("SELECT COUNT(*), TOTAL(n_bytes) FROM records").fetchone()
        )
        return (int(total[0]), int(total[1])) if total else (0, 0)

    def prune(self, used_before_s: float) -> int:
        """Remove all owners' records that were not used since; how many. Gives back the space."""
        if not self._is_there:
            return 0
        statement = "DELETE FROM records WHERE used_s <= ?"
        n = self._db.write(lambda db: db.execute(statement, (used_before_s,)).rowcount)
        if n:
            self._db.run(lambda db: db.execute("VACUUM"))
            self._db.run(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        return n or 0

    def check(self) -> tuple[int, list[Fault]]:
        """How many records are sound, and what is wrong with the others. Changes nothing."""
        if not self._is_there:
            return 0, []
        try:
            with contextlib.closing(_read_only(self._db.file)) as db:
                found = [(row.id, row.fault) for row in _read_checked(db)]
        except (sqlite3.Error, ValueError, TypeError) as error:
            return 0, [Fault(FILE, str(error))]
        bad = [Fault(f"record {id}", reason) for id, reason in found if reason]
        return len(found) - len(bad), bad

    def repair(self) -> None:
        """Remove what ``check`` finds."""
        # a damaged file is made anew by this
        bad = self._db.run(lambda db: [row.id for row in _read_checked(db) if row.fault])
        self.remove(bad or ())

    def remove(self, ids: Iterable[int]) -> None:
        values = [(id,) for id in ids]
        if values:
            self._db.write(lambda db: db.executemany("DELETE FROM records WHERE id = ?", values))

    def close(self) -> None:
        self._db.close()


@dataclass(frozen=True, slots=True)
class _Row:
    id: int
    name: str
    data: bytes
    fault: str  # empty: it is what was written


def _replace(db: sqlite3.Connection, owner: str, changes: Changes) -> None:
    for name, data in changes.contents.items():
        db.execute("DELETE FROM records WHERE owner = ? AND name = ?", (owner, name))
        if data is None:
            continue
        values = (owner, name, len(data), changes.used_s[name])
        row = db.execute(
            "INSERT INTO records (owner, name, n_bytes, used_s) VALUES (?, ?, ?, ?)", values
        )
        content = (row.lastrowid, _sum(owner, name, data), data)
        db.execute("INSERT OR REPLACE INTO contents (id, sum, data) VALUES (?, ?, ?)", content)


def _read_checked(db: sqlite3.Connection, owner: str | None = None) -> Iterator[_Row]:
    """Raises ValueError where tables or indexes are damaged, which may just hide what is there."""
    (fault,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if fault != "ok":
        raise ValueError(fault)
    tables = db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
    if {text for (text,) in tables} != _TABLES_AS_STORED:
        raise ValueError("its tables are others")
    if owner is None:
        found = db.execute(_READ)
    else:
        found = db.execute(f"{_READ} WHERE owner = ? ORDER BY used_s, id", (owner,))
    for id, of, name, n_bytes, total, data in found:
        if not isinstance(data, bytes) or len(data) != n_bytes or total != _sum(of, name, data):
            yield _Row(id, str(name), b"", "its checksum is wrong")
        else:
            yield _Row(id, name, data, "")


def _read_only(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)


def _sum(owner: object, name: object, data: bytes) -> bytes:
    digest = hashlib.blake2b(f"{owner}\0{name}\0".encode("utf-8", "surrogatepass"), digest_size=16)
    digest.update(data)
    return digest.digest()

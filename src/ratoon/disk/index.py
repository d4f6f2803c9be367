"""What is remembered of each snapshot beside its file: how often and when it was used.

Only a convenience. The files are the truth: an index that is missing, damaged or can't be written
is made anew from them, or done without, and loses no snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ratoon.disk.format import Kind

log = logging.getLogger("ratoon.disk")

T = TypeVar("T")

VERSION = 1
FILE = f"index-{VERSION}.sqlite3"  # another version's index is left alone
BUSY_S = 5.0
HALF_LIFE_S = 86_400.0  # people come back to a session within days

# What may pass by itself. Any other fault means that the file is no sound index.
_PASSING: Final = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
}
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS states (
    key TEXT PRIMARY KEY, fingerprint TEXT NOT NULL, label TEXT NOT NULL, kind INTEGER NOT NULL,
    n_tokens INTEGER NOT NULL, n_spared INTEGER NOT NULL, n_bytes INTEGER NOT NULL,
    n_hits INTEGER NOT NULL, used_s REAL NOT NULL
) WITHOUT ROWID
"""
_COLUMNS: Final = "key, fingerprint, label, kind, n_tokens, n_spared, n_bytes, n_hits, used_s"


@dataclass(slots=True)
class Row:
    """One snapshot. ``n_bytes`` is the size of the whole file; ``used_s`` is the time of day."""

    key: str
    fingerprint: str
    label: str
    kind: Kind
    n_tokens: int
    n_spared: int
    n_bytes: int
    n_hits: int
    used_s: float

    def worth(self, now: float) -> float:
        """Expected tokens saved per byte."""
        frequency = (1 + self.n_hits) * math.exp2(-max(0.0, now - self.used_s) / HALF_LIFE_S)
        return self.n_spared * frequency / max(1, self.n_bytes)


class Index:
    """The sqlite file of one folder. No method raises: what fails is logged once and left out."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._db: sqlite3.Connection | None = None
        self._has_failed = False

    def rows(self) -> dict[str, Row]:
        """All that is known, of every fingerprint."""

        def read(db: sqlite3.Connection) -> dict[str, Row]:
            found = (_row(values) for values in db.execute(f"SELECT {_COLUMNS} FROM states"))
            return {row.key: row for row in found}

        return self._run(read) or {}

    def add(self, rows: Iterable[Row]) -> None:
        """A known key keeps its hits."""
        values = [_values(row) for row in rows]
        marks = ", ".join("?" * len(_COLUMNS.split()))
        self._write(f"INSERT OR IGNORE INTO states ({_COLUMNS}) VALUES ({marks})", values)

    def remove(self, keys: Iterable[str]) -> None:
        self._write("DELETE FROM states WHERE key = ?", [(key,) for key in keys])

    def touch(self, uses: Iterable[tuple[str, int, float]]) -> None:
        """(key, further hits, time of the last one); adds up over processes."""
        self._write(
            "UPDATE states SET n_hits = n_hits + ?, used_s = max(used_s, ?) WHERE key = ?",
            [(n, used_s, key) for key, n, used_s in uses],
        )

    def close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    def _write(self, statement: str, values: list[tuple[object, ...]]) -> None:
        if not values:
            return

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.execute("BEGIN IMMEDIATE")
                db.executemany(statement, values)

        self._run(write)

    def _run(self, use: Callable[[sqlite3.Connection], T]) -> T | None:
        """``None`` where the index can't be used now. A damaged one is replaced by an empty one."""
        for is_first in (True, False):
            try:
                if self._db is None:
                    self._db = _connect(self._file)
                return use(self._db)
            except (sqlite3.Error, ValueError, TypeError) as error:
                self.close()
                if is_first and _is_damage(error):
                    log.warning("the index %s is damaged (%s); it is made anew", self._file, error)
                    self._delete()
                    continue
                self._tell_once(error)
                return None
        return None

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                self._file.with_name(FILE + suffix).unlink()

    def _tell_once(self, error: Exception) -> None:
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        log.log(level, "the index %s can't be used (%s); hits are not kept", self._file, error)


def _connect(file: Path) -> sqlite3.Connection:
    # used by one thread at a time, but not always by the same
    db = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF not in _PASSING


def _row(values: tuple[str, str, str, int, int, int, int, int, float]) -> Row:
    """Raises ValueError or TypeError where a value is not of its kind; sqlite does not mind."""
    key, fingerprint, label, kind, *counts, used_s = values
    n_tokens, n_spared, n_bytes, n_hits = (int(n) for n in counts)
    texts = str(key), str(fingerprint), str(label)
    return Row(*texts, Kind(kind), n_tokens, n_spared, n_bytes, n_hits, float(used_s))


def _values(row: Row) -> tuple[object, ...]:
    counts = (row.n_tokens, row.n_spared, row.n_bytes, row.n_hits)
    return (row.key, row.fingerprint, row.label, int(row.kind), *counts, row.used_s)

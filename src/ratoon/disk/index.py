"""What is remembered of each snapshot beside its file: how often and when it was used.

Only a convenience. The files are the truth: an index that is missing, damaged or can't be written
is made anew from them, or done without, and loses no snapshot.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratoon.disk.database import Database
from ratoon.disk.format import Kind

VERSION = 1
FILE = f"index-{VERSION}.sqlite3"  # another version's index is left alone
HALF_LIFE_S = 86_400.0  # people come back to a session within days

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
        self._db = Database(folder / FILE, [_SCHEMA], "hits are not kept")

    def rows(self) -> dict[str, Row]:
        """All that is known, of every fingerprint."""

        def read(db: sqlite3.Connection) -> dict[str, Row]:
            found = (_row(values) for values in db.execute(f"SELECT {_COLUMNS} FROM states"))
            return {row.key: row for row in found}

        return self._db.run(read) or {}

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
        self._db.close()

    def _write(self, statement: str, values: list[tuple[object, ...]]) -> None:
        if values:
            self._db.write(lambda db: db.executemany(statement, values))


def _row(values: tuple[str, str, str, int, int, int, int, int, float]) -> Row:
    """Raises ValueError or TypeError where a value is not of its kind; sqlite does not mind."""
    key, fingerprint, label, kind, *counts, used_s = values
    n_tokens, n_spared, n_bytes, n_hits = (int(n) for n in counts)
    texts = str(key), str(fingerprint), str(label)
    return Row(*texts, Kind(kind), n_tokens, n_spared, n_bytes, n_hits, float(used_s))


def _values(row: Row) -> tuple[object, ...]:
    counts = (row.n_tokens, row.n_spared, row.n_bytes, row.n_hits)
    return (row.key, row.fingerprint, row.label, int(row.kind), *counts, row.used_s)

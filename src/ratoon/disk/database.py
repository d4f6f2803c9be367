"""A small sqlite file that processes share and that can be done without.

So no fault of it is an error: what fails is logged once and left out, and a damaged file is made
anew.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

log = logging.getLogger("ratoon.disk")

T = TypeVar("T")

BUSY_S = 5.0

# What may pass by itself. Any other fault means that the file is not sound.
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


class Database:
    """One sqlite file, used by one thread at a time. No method raises.

    ``setup``: statements for a new connection, with the tables if they are not there yet.
    ``loss``: what the user does without while the file can't be used.
    """

    def __init__(self, file: Path, setup: Sequence[str], loss: str) -> None:
        self.file = file
        self._setup = setup
        self._loss = loss
        self._db: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None  # of the file that is open
        self._has_failed = False

    def run(self, use: Callable[[sqlite3.Connection], T]) -> T | None:
        """``None`` where the file can't be used now. A damaged one is replaced by an empty one."""
        for is_first in (True, False):
            try:
                return use(self._connected())
            except (sqlite3.Error, ValueError, TypeError) as error:
                file_id, reason = self._file_id, " ".join(str(error).split())
                self.close()
                if is_first and _is_damage(error):
                    log.warning("the file %s is damaged (%s); it is made anew", self.file, reason)
                    self._delete(file_id)
                    continue
                self._tell_once(reason)
                return None
        return None

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T | None:
        """As ``run``, with all that is changed there after a crash, or nothing of it."""

        def transact(db: sqlite3.Connection) -> T:
            with db:
                db.execute("BEGIN IMMEDIATE")
                return change(db)

        return self.run(transact)

    def close(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        self._db = self._file_id = None

    def _connected(self) -> sqlite3.Connection:
        # another process may have removed the file, or made it anew
        if self._db is not None and _file_id(self.file) != self._file_id:
            self.close()
        if self._db is None:
            with contextlib.suppress(OSError):  # there already, or sqlite will tell
                self.file.touch(mode=0o600, exist_ok=False)
            self._file_id = _file_id(self.file)
            self._db = _connect(self.file, self._setup)
        return self._db

    def _delete(self, file_id: tuple[int, int] | None) -> None:
        """Unless another process was faster and has made it anew. The file itself goes last: what
        is beside it is then never taken for a new file's."""
        if _file_id(self.file) == file_id:
            for suffix in ("-wal", "-shm", ""):
                with contextlib.suppress(OSError):
                    self.file.with_name(self.file.name + suffix).unlink()

    def _tell_once(self, reason: str) -> None:
        level = logging.DEBUG if self._has_failed else logging.WARNING
        self._has_failed = True
        log.log(level, "the file %s can't be used (%s); %s", self.file, reason, self._loss)


def _connect(file: Path, setup: Sequence[str]) -> sqlite3.Connection:
    # used by one thread at a time, but not always by the same
    db = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        for statement in setup:
            db.execute(statement)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _file_id(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _is_damage(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is None or code & 0xFF not in _PASSING

"""Snapshot files in one folder: written whole or not at all, checked before a byte is trusted.

A file under its final name is never changed, only removed, so a mapping of it stays what it was.
Locks are the kernel's (``flock``): it drops them when a process dies, however it dies.

* The writer of a temporary file holds it locked; an unlocked one is left over from a dead process.
* Who reads a snapshot holds it locked with others until the last view of it is gone. Evicting it
  would free nothing before that, so it is spared.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ratoon.disk.format import BadSnapshot, ForeignSnapshot, Head, check_payload, read_head

log = logging.getLogger("ratoon.disk")

SUFFIX = ".state"
STATE_NAME: Final = re.compile(r"([0-9a-f]{32})\.state")
_PART: Final = re.compile(r"\.[0-9a-f]{32}\.part")
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe of that name would hold us up
_WRITE_BYTES = 8 << 20  # at once; between two of these other threads run


class StateFiles:
    """The files, by key. Thread-safe; other processes may use the same folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_closed = False

    def close(self) -> None:
        """End the loads under way, and all others."""
        self._is_closed = True

    def create(self) -> None:
        """Make the folder, for this user only: snapshots hold prompts. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        return self.folder / (key + SUFFIX)

    def sizes(self) -> dict[str, int]:
        """Every snapshot there is, whoever wrote it. Raises OSError."""
        found: dict[str, int] = {}
        with os.scandir(self.folder) as entries:
            for entry in entries:
                match = STATE_NAME.fullmatch(entry.name)
                if match is None:
                    continue
                with contextlib.suppress(FileNotFoundError):  # removed by another process
                    found[match[1]] = entry.stat(follow_symlinks=False).st_size
        return found

    def write(self, key: str, chunks: Iterable[bytes | memoryview], *, check: bool = False) -> bool:
        """Write a snapshot so that it is there whole, or not at all, after any crash.

        False: another process is writing this very state now. With ``check`` the chunks are not
        trusted. Raises OSError, BadSnapshot.
        """
        part = self.folder / f".{key}.part"
        fd = _create_locked(part)
        if fd is None:
            return False
        try:
            for chunk in chunks:
                _write_all(fd, memoryview(chunk))
            if check:
                check_payload(fd, _checked_head(fd, key, None))
            os.fsync(fd)
            part.replace(self.path(key))
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        finally:
            os.close(fd)
        self._sync_folder()
        return True

    def _sync_folder(self) -> None:
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def head(self, key: str) -> Head:
        """Raises FileNotFoundError, OSError, BadSnapshot."""
        with self._opened(key) as fd:
            return _checked_head(fd, key, None)

    def load(self, key: str, fingerprint: str | None) -> tuple[Head, memoryview]:
        """The head and the mapped payload, every byte checked; the fingerprint may be any if
        ``None``. Raises FileNotFoundError, InterruptedError, OSError, BadSnapshot."""
        with self._opened(key) as fd:
            # the mapping keeps a copy of fd, and with it the lock, until the last view is gone
            _lock(fd, fcntl.LOCK_SH)
            head = _checked_head(fd, key, fingerprint)
            check_payload(fd, head, lambda: not self._is_closed)
            mapped = mmap.mmap(fd, head.n_bytes, access=mmap.ACCESS_READ)
        return head, memoryview(mapped)[head.n_head :]

    @contextlib.contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        fd = os.open(self.path(key), _OPEN)
        try:
            yield fd
        finally:
            os.close(fd)

    def remove(self, key: str) -> None:
        """Whoever reads it keeps what is mapped. Raises OSError, but not if it is gone."""
        self.path(key).unlink(missing_ok=True)

    def evict(self, key: str) -> bool:
        """Remove it to free space. False: it is being read. Raises OSError."""
        try:
            with self._opened(key) as fd:
                if not _lock(fd, fcntl.LOCK_EX):
                    return False
                self.remove(key)
        except FileNotFoundError:
            pass  # another process was faster
        return True

    def sweep(self) -> int:
        """Remove what dead processes left half-written; how many files that were."""
        n = 0
        with os.scandir(self.folder) as entries:
            parts = [Path(entry.path) for entry in entries if _PART.fullmatch(entry.name)]
        for part in parts:
            with contextlib.suppress(OSError):  # gone already, or the folder is read-only
                n += _remove_abandoned(part)
        return n


def _checked_head(fd: int, key: str, fingerprint: str | None) -> Head:
    head = read_head(fd)
    if head.key != key:
        raise BadSnapshot("it is not the state its name tells")
    if fingerprint is not None and head.fingerprint != fingerprint:
        raise ForeignSnapshot("it belongs to another model, build or setting")
    return head


def _create_locked(part: Path) -> int | None:
    """A new temporary file, locked by us; ``None`` if another process is writing it."""
    for _ in range(3):
        try:
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if not _remove_abandoned(part):
                    return None
            continue
        if _lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # swept by another process before it was locked
    return None


def _remove_abandoned(part: Path) -> bool:
    """Remove a temporary file that nobody holds. Raises FileNotFoundError, OSError."""
    fd = os.open(part, _OPEN)
    try:
        if not _lock(fd, fcntl.LOCK_EX):
            return False
        # it may have got its final name since it was opened; then ``part`` is another file or none
        if os.stat(part).st_ino == os.fstat(fd).st_ino:
            part.unlink()
        return True
    finally:
        os.close(fd)


def _lock(fd: int, how: int) -> bool:
    """Take a lock without waiting. A file system without locks counts as unlocked."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.debug("no file locks here: %s", error)
    return True


def _write_all(fd: int, data: memoryview) -> None:
    data = data.cast("B")
    done = 0
    while done < len(data):
        done += os.write(fd, data[done : done + _WRITE_BYTES])

"""Records written behind the caller's back: what changes is noted at once and written by a thread.

Dying at any moment loses at most what was noted since the last write.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratoon.disk.records import Changes, Records

log = logging.getLogger("ratoon.disk")

SAVE_USES_S = 5.0  # uses are written this late, or with the next change
_NOTE_BYTES = 256  # what a note takes beside its record


@dataclass(frozen=True, slots=True)
class BehindConfig:
    """``max_bytes``: of the records on disk. ``max_pending_bytes``: of those not yet written."""

    max_bytes: int
    max_pending_bytes: int = 16 << 20
    retry_s: float = 60.0  # a disk that failed to write is left alone this long


class WriteBehind:
    """The records of one owner. Every method may be called from any thread, and none raises.

    ``put``, ``touch`` and ``remove`` only take note. When too much is pending, the oldest note is
    dropped.
    """

    def __init__(
        self,
        folder: Path,
        owner: str,
        config: BehindConfig,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._owner = owner
        self._config = config
        self._clock = clock
        self._records = Records(folder, clock)
        self._wake = threading.Condition()  # guards all below
        self._contents: dict[str, bytes | None] = {}  # as in ``Changes``, oldest note first
        self._used_s: dict[str, float] = {}
        self._n_pending_bytes = 0
        self._due_s = math.inf  # when to write next, in the monotonic clock's time
        self._has_failed = False
        self._has_dropped = False
        self._is_busy = False
        self._is_closing = False
        self._writer = threading.Thread(target=self._run, name="records-writer", daemon=True)
        self._writer.start()

    def load(self) -> list[tuple[str, bytes]]:
        """Name and content of what is on disk, least recently used first. Waits for the disk."""
        records = Records(self._records.folder, self._clock)  # the other one is the writer's
        try:
            return records.load(self._owner)
        finally:
            records.close()

    def put(self, name: str, data: bytes) -> None:
        """Have a record written; it takes the place of an older one of this name."""
        self._note(name, data)

    def remove(self, name: str) -> None:
        self._note(name, None)

    def touch(self, name: str) -> None:
        """The record was used."""
        with self._wake:
            if self._is_closing:
                return
            self._used_s[name] = self._clock()
            if self._due_s == math.inf:
                self._due_s = time.monotonic() + SAVE_USES_S
                self._wake.notify_all()

    def _note(self, name: str, data: bytes | None) -> None:
        with self._wake:
            if self._is_closing:
                return
            self._unnote(name)
            self._add(name, data)
            if data is not None:
                self._used_s[name] = self._clock()
            self._bound()
            if not self._has_failed:
                self._due_s = 0.0
                self._wake.notify_all()

    # --- at the end ----------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written that was noted; whether that succeeded in time."""
        with self._wake:
            self._due_s = 0.0
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._is_closing or self._was_tried, timeout_s)
            return self._was_tried and not self._contents and not self._used_s

    @property
    def _was_tried(self) -> bool:
        return not self._is_busy and self._due_s > time.monotonic()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is pending and stop; what can't be written in time is lost."""
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
        self._writer.join(timeout_s)

    # --- on the writer thread ------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_until_due():
            self._write()
        self._write()
        self._records.close()

    def _wait_until_due(self) -> bool:
        """False: it is the last time."""
        with self._wake:
            while not self._is_closing and (wait_s := self._due_s - time.monotonic()) > 0:
                self._wake.wait(None if wait_s == math.inf else wait_s)
            return not self._is_closing

    def _write(self) -> None:
        with self._wake:
            changes = Changes(self._contents, self._used_s)
            self._contents, self._used_s, self._n_pending_bytes = {}, {}, 0
            self._due_s, self._is_busy = math.inf, True
        is_written = False
        try:
            is_nothing = not changes.contents and not changes.used_s
            is_written = is_nothing or self._apply(changes)
        except Exception:  # the thread's boundary: one bad batch does not end the keeping
            log.exception("keeping records failed")
        finally:
            self._finish(changes, is_written)

    def _apply(self, changes: Changes) -> bool:
        return self._records.apply(self._owner, changes, self._config.max_bytes)

    def _finish(self, changes: Changes, is_written: bool) -> None:
        with self._wake:
            self._is_busy = False
            self._has_failed = not is_written
            if not is_written:
                self._take_back(changes)
                self._due_s = time.monotonic() + self._config.retry_s
            self._wake.notify_all()

    def _take_back(self, changes: Changes) -> None:
        """What could not be written is pending again, unless newer notes say otherwise."""
        newer, self._contents, self._n_pending_bytes = self._contents, {}, 0
        for name, data in {**changes.contents, **newer}.items():
            self._add(name, data)
        self._used_s = {**changes.used_s, **self._used_s}
        self._bound()

    # --- the notes -----------------------------------------------------------------------------

    def _add(self, name: str, data: bytes | None) -> None:
        self._contents[name] = data
        self._n_pending_bytes += _note_bytes(data)

    def _unnote(self, name: str) -> None:
        if name in self._contents:
            self._n_pending_bytes -= _note_bytes(self._contents.pop(name))
        self._used_s.pop(name, None)

    def _bound(self) -> None:
        while self._n_pending_bytes > self._config.max_pending_bytes:
            self._unnote(next(iter(self._contents)))
            if not self._has_dropped:
                log.warning("the disk is too slow or fails: some replies are not kept on it")
                self._has_dropped = True


def _note_bytes(data: bytes | None) -> int:
    return _NOTE_BYTES + len(data or b"")

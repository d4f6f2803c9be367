"""The disk tier as the engine sees it: nothing here waits for the disk but ``load`` and ``flush``.

A writer thread owns the folder and takes jobs in order; a reader thread checks and maps files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ratoon.disk.fingerprint import Fingerprint
from ratoon.disk.folder import Fault, StateFolder
from ratoon.disk.format import BadSnapshot, ForeignSnapshot, Kind, State, file_bytes, state_key
from ratoon.disk.index import Row

log = logging.getLogger("ratoon.disk")

SAVE_USES_S = 5.0  # hits reach the index this late, or with the next write


@dataclass(frozen=True, slots=True)
class DiskConfig:
    """The disk tier's limits. ``max_bytes`` counts the files of all models in the folder."""

    max_bytes: int
    max_pending_bytes: int = 512 << 20  # states that wait in memory to be written
    retry_s: float = 60.0  # a disk that failed to write is left alone this long


@dataclass(frozen=True, slots=True)
class Entry:
    """A snapshot that was there at the start."""

    key: str
    tokens: list[int]
    kind: Kind
    n_bytes: int
    n_hits: int
    age_s: float  # since its last use


@dataclass(frozen=True, eq=False, slots=True)
class _Write:
    key: str
    state: State
    replaces: Sequence[str]


@dataclass(frozen=True, eq=False, slots=True)
class _Remove:
    key: str
    reason: str


class _SaveUses:
    pass


class DiskStore:
    """Snapshots of one fingerprint in a folder that other processes and models may share.

    All methods are thread-safe. ``put``, ``prefetch``, ``touch``, ``forget`` and ``take_lost`` only
    take note and may be called from the engine thread. A fault of the disk costs snapshots, never
    an exception.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: Fingerprint,
        config: DiskConfig,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self._fingerprint = fingerprint.digest
        self._label = fingerprint.label
        self._clock = clock
        self._folder = StateFolder(folder, clock)
        self._files = self._folder.files
        self._wake = threading.Condition()  # guards all below
        self._jobs: deque[_Write | _Remove | _SaveUses] = deque()
        self._known: set[str] = set()  # believed to be on the disk
        self._pending: dict[str, _Write] = {}  # of two for one key, the one that counts
        self._doomed: set[str] = set()  # to be removed; no longer read
        self._lost: list[str] = []
        self._uses: dict[str, tuple[int, float]] = {}
        self._reads: dict[str, Future[memoryview | None]] = {}
        self._n_pending_bytes = 0
        self._n_bytes = 0
        self._counts = dict.fromkeys(("written", "refused", "evicted", "bad", "loaded"), 0)
        self._failed_s: float | None = None
        self._is_busy = False
        self._is_closing = False
        self._found = self._open()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="disk-reader")
        self._writer = threading.Thread(target=self._run, name="disk-writer", daemon=True)
        self._writer.start()

    def _open(self) -> list[Row]:
        try:
            self._folder.open()
        except OSError as error:
            self._fail(f"can't use the folder {self._files.folder}: {error.strerror}")
            return []
        self._n_bytes = self._folder.n_bytes
        mine = [row for row in self._folder.rows.values() if row.fingerprint == self._fingerprint]
        self._known.update(row.key for row in mine)
        if n_others := len(self._folder.rows) - len(mine):
            log.info("%d states of other models, builds or settings are left alone", n_others)
        return sorted(mine, key=lambda row: row.used_s, reverse=True)

    # --- from the engine thread ----------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        """What was there when the store was opened, last used first; reads a head for each."""
        for row in self._found:
            try:
                head = self._files.head(row.key)
            except BadSnapshot as error:
                self._refuse(row.key, str(error))
            except OSError:
                self._note_lost(row.key)
            else:
                tokens, age_s = head.tokens.tolist(), max(0.0, self._clock() - row.used_s)
                yield Entry(row.key, tokens, head.kind, head.n_bytes, row.n_hits, age_s)

    def key(self, tokens: Sequence[int], kind: Kind = Kind.WHOLE) -> str:
        """What the state of these tokens is called."""
        return state_key(self._fingerprint, kind, tokens)

    @property
    def is_ready(self) -> bool:
        """Whether a state that is put now would be written at once."""
        with self._wake:
            return not (self._pending or self._is_closing or self._is_resting())

    def put(self, state: State, *, replaces: Sequence[str] = (), wait_s: float = 0.0) -> str | None:
        """Have a state written; its key, by which it can be loaded from now on.

        What it ``replaces`` is removed once it is safely on the disk. ``None``: the writer is
        behind, the disk failed lately or the state is larger than the budget; nothing happens.
        ``wait_s`` is how long to wait for a writer that is behind.
        """
        n_bytes = state.data.nbytes
        key = self.key(state.tokens, state.kind)
        with self._wake:
            if key in self._pending or (key in self._known and not replaces):
                return key
            if n_bytes <= self.config.max_bytes and not self._is_resting():
                self._wake.wait_for(lambda: self._is_closing or self._has_room(n_bytes), wait_s)
                is_taken = self._has_room(n_bytes) and not self._is_closing
            else:
                is_taken = False
            if not is_taken:
                self._counts["refused"] += 1
                return None
            self._pending[key] = job = _Write(key, state, tuple(replaces))
            self._n_pending_bytes += n_bytes
            self._jobs.append(job)
            self._wake.notify_all()
        return key

    def _has_room(self, n_bytes: int) -> bool:
        n_after = self._n_pending_bytes + n_bytes
        return not self._n_pending_bytes or n_after <= self.config.max_pending_bytes

    def _is_resting(self) -> bool:
        if self._failed_s is None:
            return False
        return abs(self._clock() - self._failed_s) < self.config.retry_s

    def prefetch(self, key: str) -> Future[memoryview | None]:
        """Begin to ``load`` on another thread. The future may be shared: don't cancel it."""
        with self._wake:
            if key in self._reads:
                return self._reads[key]
            if self._is_closing:
                nothing: Future[memoryview | None] = Future()
                nothing.set_result(None)
                return nothing
            self._reads[key] = future = self._reader.submit(self._load_and_leave, key)
            return future

    def _load_and_leave(self, key: str) -> memoryview | None:
        try:
            return self.load(key)
        except Exception:  # the thread's boundary: whoever waits for it must be told
            log.exception("reading a snapshot failed")
            self._note_lost(key)
            return None
        finally:
            with self._wake:
                del self._reads[key]

    def load(self, key: str) -> memoryview | None:
        """The state, mapped from its file and checked to the last byte, or ``None`` if there is no
        sound one. Takes about a second per GB. While the view lives, the file is not evicted."""
        with self._wake:
            job = self._pending.get(key)
            if job is not None:
                return job.state.data.cast("B").toreadonly()
            if key in self._doomed or self._is_closing:
                return None
        try:
            _, view = self._files.load(key, self._fingerprint)
        except (FileNotFoundError, InterruptedError):
            self._note_lost(key)
        except ForeignSnapshot as error:
            log.warning("the snapshot %s is not used: %s", self._files.path(key), error)
            self._note_lost(key)
        except BadSnapshot as error:
            self._refuse(key, str(error))
        except OSError as error:
            log.warning("can't read the snapshot %s: %s", self._files.path(key), error.strerror)
            self._note_lost(key)
        else:
            with self._wake:
                self._counts["loaded"] += 1
            return view
        return None

    def touch(self, key: str) -> None:
        """A request used this state."""
        with self._wake:
            n, _ = self._uses.get(key, (0, 0.0))
            self._uses[key] = (n + 1, self._clock())
            if not n:
                self._wake.notify_all()

    def forget(self, key: str) -> None:
        """Remove a state: it is of no use any more, or the model refused it."""
        self._remove(key, "")

    def take_lost(self) -> list[str]:
        """Keys handed out that lead nowhere any more, since the last call: evicted, replaced,
        refused, or not written. The tree should forget them; loading one is a miss, no error."""
        with self._wake:
            lost, self._lost = self._lost, []
        return lost

    def stats(self) -> dict[str, int]:
        """Figures for the metrics and the console."""
        with self._wake:
            return {
                "disk_bytes": self._n_bytes,
                "disk_max_bytes": self.config.max_bytes,
                "disk_snapshots": len(self._known),
                "disk_pending_bytes": self._n_pending_bytes,
                **{f"disk_{name}": n for name, n in self._counts.items()},
            }

    # --- at the end ----------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written that was put; whether that succeeded in time."""
        with self._wake:
            self._jobs.append(_SaveUses())
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._is_closing or self._is_idle, timeout_s)
            return self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self._jobs and not self._is_busy

    def close(self, timeout_s: float = 5.0) -> None:
        """Finish the job under way and stop; what else is pending is dropped."""
        with self._wake:
            if self._pending:
                log.warning("up to %d states are not kept: no time left", len(self._pending))
            self._is_closing = True
            self._wake.notify_all()
        self._files.close()  # a process does not end before its reader
        self._reader.shutdown(wait=False)
        self._writer.join(timeout_s)

    # --- on the writer thread ------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                self._do(job)
            except OSError as error:
                self._fail(f"can't write to {self._files.folder}: {error.strerror}")
            except Exception:  # the thread's boundary: one bad job does not end the tier
                log.exception("the disk tier failed")
            finally:
                self._finish(job)
        self._save_uses()
        self._folder.close()

    def _next(self) -> _Write | _Remove | _SaveUses | None:
        with self._wake:
            while not self._jobs and not self._is_closing:
                timeout_s = SAVE_USES_S if self._uses else None
                if not self._wake.wait(timeout_s) and self._uses:
                    self._jobs.append(_SaveUses())
            if self._is_closing:
                return None
            self._is_busy = True
            return self._jobs.popleft()

    def _do(self, job: _Write | _Remove | _SaveUses) -> None:
        match job:
            case _Write():
                self._write(job)
            case _Remove(reason=""):
                self._folder.remove(job.key)
                self._undoom(job.key)
            case _Remove():
                if self._folder.discard(Fault(job.key, job.reason)):
                    self._undoom(job.key)
            case _SaveUses():
                self._save_uses()

    def _write(self, job: _Write) -> None:
        with self._wake:
            if self._pending.get(job.key) is not job:
                return  # forgotten meanwhile
            was_failing = self._failed_s is not None
        if was_failing:
            self._folder.open()  # it may be another disk by now, or none
        self._save_uses()
        self._mark_gone(self._folder.sync())
        if job.key in self._folder.rows or self._add(job):
            self._settle(job)

    def _add(self, job: _Write) -> bool:
        has_room, evicted = self._folder.make_room(
            file_bytes(self._label, job.state), self.config.max_bytes, job.replaces
        )
        self._mark_gone(set(evicted))
        is_written = has_room and self._folder.add(self._fingerprint, self._label, job.state)
        with self._wake:
            self._counts["evicted"] += len(evicted)
            self._counts["written"] += is_written
            self._counts["refused"] += not has_room
        return has_room

    def _settle(self, job: _Write) -> None:
        """The state is on the disk, or another process is about to have it there."""
        self._recover()
        with self._wake:
            if self._pending.get(job.key) is job:
                self._known.add(job.key)
                self._doomed.discard(job.key)
        if job.key in self._folder.rows:
            for key in job.replaces:
                self._folder.remove(key)
                self._mark_gone({key})

    def _finish(self, job: _Write | _Remove | _SaveUses) -> None:
        with self._wake:
            self._is_busy = False
            self._n_bytes = self._folder.n_bytes
            if isinstance(job, _Write):
                self._n_pending_bytes -= job.state.data.nbytes
                if self._pending.get(job.key) is job:
                    del self._pending[job.key]
                    if job.key not in self._known:
                        self._lost.append(job.key)
            self._wake.notify_all()

    def _save_uses(self) -> None:
        with self._wake:
            uses, self._uses = self._uses, {}
        self._folder.touch((key, n, used_s) for key, (n, used_s) in uses.items())

    def _undoom(self, key: str) -> None:
        with self._wake:
            self._doomed.discard(key)

    # --- bookkeeping ---------------------------------------------------------------------------

    def _mark_gone(self, keys: set[str]) -> None:
        with self._wake:
            gone = keys & self._known
            self._known -= gone
            self._lost.extend(gone)

    def _note_lost(self, key: str) -> None:
        with self._wake:
            self._known.discard(key)
            self._lost.append(key)

    def _refuse(self, key: str, reason: str) -> None:
        """A bad file: tell the tree, and have it removed."""
        self._note_lost(key)
        with self._wake:
            self._counts["bad"] += 1
        self._remove(key, reason)

    def _remove(self, key: str, reason: str) -> None:
        with self._wake:
            self._known.discard(key)
            self._pending.pop(key, None)
            self._uses.pop(key, None)
            self._doomed.add(key)
            self._jobs.append(_Remove(key, reason))
            self._wake.notify_all()

    def _fail(self, text: str) -> None:
        """One line when writing stops; nothing more until it works again."""
        with self._wake:
            is_new, self._failed_s = self._failed_s is None, self._clock()
        if is_new:
            log.warning("%s; states are not kept on disk until it works again", text)

    def _recover(self) -> None:
        with self._wake:
            was_failing, self._failed_s = self._failed_s is not None, None
        if was_failing:
            log.info("states are kept on disk again")

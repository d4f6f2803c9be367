"""A folder of snapshots and its index, kept in agreement, under a byte budget."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ratoon.disk.files import StateFiles
from ratoon.disk.format import BadSnapshot, Head, State, pack_head, state_key
from ratoon.disk.index import Index, Row

log = logging.getLogger("ratoon.disk")

# Of the file system, this much is left to others.
RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 20  # at most one part in so many


@dataclass(frozen=True, slots=True)
class Fault:
    """A file that is not the snapshot it should be."""

    key: str
    reason: str


class StateFolder:
    """All snapshots of a folder, of every fingerprint. Used by one thread at a time; other
    processes may change the folder at any moment, which ``sync`` finds out."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.files = StateFiles(path)
        self.rows: dict[str, Row] = {}
        self._index = Index(path)
        self._ignored: set[str] = set()  # can't be read, and was told so
        self._clock = clock

    def open(self) -> None:
        """Make the folder if needed, sweep it and learn what is there. Raises OSError."""
        self.files.create()
        if n := self.files.sweep():
            log.info("removed %d half-written snapshots of a process that died", n)
        self.sync()

    def close(self) -> None:
        self._index.close()

    @property
    def n_bytes(self) -> int:
        return sum(row.n_bytes for row in self.rows.values())

    def sync(self) -> set[str]:
        """Learn what others wrote and removed; returns the keys that are gone. Raises OSError."""
        sizes = self.files.sizes()
        gone = self.rows.keys() - sizes.keys()
        new = sizes.keys() - self.rows.keys() - self._ignored
        self._drop(gone)
        if new:
            known = self._index.rows()
            self._index.remove(known.keys() - sizes.keys())
            self._learn({key: sizes[key] for key in new}, known)
        return gone

    def _learn(self, sizes: dict[str, int], known: dict[str, Row]) -> None:
        unknown: list[Row] = []
        for key, n_bytes in sizes.items():
            row = known.get(key)
            if row is None or row.n_bytes != n_bytes:
                row = self._read(key)
                if row is None:
                    continue
                unknown.append(row)
            self.rows[key] = row
        self._index.add(unknown)

    def _read(self, key: str) -> Row | None:
        """What a file tells of itself. A bad one is removed; what can't be is told once."""
        try:
            head = self.files.head(key)
            used_s = self.files.path(key).stat().st_mtime
        except FileNotFoundError:
            return None
        except BadSnapshot as error:
            if not self.discard(Fault(key, str(error))):
                self._ignored.add(key)
            return None
        except OSError as error:
            log.warning("can't read %s: %s", self.files.path(key), error.strerror)
            self._ignored.add(key)
            return None
        return _row(key, head, used_s)

    def add(self, fingerprint: str, label: str, state: State) -> bool:
        """Write a state. False: another process is writing the same now. Raises OSError."""
        key = state_key(fingerprint, state.kind, state.tokens)
        head = pack_head(fingerprint, label, state)
        if not self.files.write(key, (head, state.data)):
            return False
        n_tokens = len(state.tokens)
        self.rows[key] = Row(
            key=key,
            fingerprint=fingerprint,
            label=label,
            kind=state.kind,
            n_tokens=n_tokens,
            n_spared=state.n_spared or n_tokens,
            n_bytes=len(head) + state.data.nbytes,
            n_hits=0,
            used_s=self._clock(),
        )
        self._index.add([self.rows[key]])
        return True

    def adopt(self, key: str, chunks: Iterable[bytes]) -> bool:
        """Write a file that comes from elsewhere, if it is a sound snapshot. False: another process
        is writing it now. Raises OSError, BadSnapshot."""
        if not self.files.write(key, chunks, check=True):
            return False
        self.sync()
        return True

    def make_room(
        self, n_bytes: int, max_bytes: int, replaced: Collection[str] = ()
    ) -> tuple[bool, list[str]]:
        """Evict what is worth least until so many bytes fit into the budget and on the disk.

        What is going to be ``replaced`` neither counts nor is evicted. Returns whether there is
        room, and the evicted keys. Raises OSError.
        """
        if n_bytes > max_bytes:
            return False, []
        missing = self.missing(n_bytes, max_bytes, replaced)
        if missing <= 0:
            return True, []
        self._take_over_uses()
        now = self._clock()
        evicted: list[str] = []
        fault: OSError | None = None
        for row in sorted(self.rows.values(), key=lambda row: row.worth(now)):
            if missing <= 0:
                break
            try:
                if row.key not in replaced and self.files.evict(row.key):
                    evicted.append(row.key)
                    missing -= row.n_bytes
            except OSError as error:  # another user's, say: others may go instead
                fault = error
        self._drop(evicted)
        if missing > 0 and fault is not None:
            raise fault
        return missing <= 0, evicted

    def missing(self, n_bytes: int, max_bytes: int, replaced: Collection[str] = ()) -> int:
        """How many bytes must go before so many have room; 0 or less: none. Raises OSError."""
        n_used = sum(row.n_bytes for row in self.rows.values() if row.key not in replaced)
        n_over = n_used + n_bytes - max_bytes
        return max(n_over, n_bytes - self._n_free()) if n_bytes else n_over

    def _n_free(self) -> int:
        """Bytes of the file system that a snapshot may take."""
        usage = shutil.disk_usage(self.files.folder)
        return usage.free - min(RESERVE_BYTES, usage.total // RESERVE_SHARE)

    def _take_over_uses(self) -> None:
        """Other processes' hits count as much as ours."""
        for key, known in self._index.rows().items():
            row = self.rows.get(key)
            if row is not None:
                row.used_s = max(known.used_s, row.used_s)
                row.n_hits = max(known.n_hits, row.n_hits)

    def touch(self, uses: Iterable[tuple[str, int, float]]) -> None:
        """(key, further hits, time of the last one)."""
        uses = list(uses)
        for key, n, used_s in uses:
            if key in self.rows:
                self.rows[key].n_hits += n
                self.rows[key].used_s = max(used_s, self.rows[key].used_s)
        self._index.touch(uses)

    def remove(self, key: str) -> None:
        """Raises OSError, but not if it is gone."""
        self.files.remove(key)
        self._drop([key])

    def discard(self, fault: Fault) -> bool:
        """Remove a bad file and say so. False: it could not be removed."""
        path = self.files.path(fault.key)
        try:
            self.remove(fault.key)
        except OSError as error:
            log.warning("left the snapshot %s: %s; %s", path, fault.reason, error.strerror)
            return False
        log.warning("removed the snapshot %s: %s", path, fault.reason)
        return True

    def _drop(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for key in keys:
            self.rows.pop(key, None)
        self._index.remove(keys)


def faults(files: StateFiles) -> Iterator[Fault | Head]:
    """Check every byte of every snapshot: its head, or what is wrong with it. Raises OSError."""
    for key in sorted(files.sizes()):
        try:
            yield files.load(key, None)[0]
        except FileNotFoundError:
            continue  # evicted by another process
        except BadSnapshot as error:
            yield Fault(key, str(error))
        except OSError as error:
            yield Fault(key, f"it can't be read: {error.strerror}")


def _row(key: str, head: Head, used_s: float) -> Row:
    return Row(
        key=key,
        fingerprint=head.fingerprint,
        label=head.label,
        kind=head.kind,
        n_tokens=len(head.tokens),
        n_spared=head.n_spared,
        n_bytes=head.n_bytes,
        n_hits=0,
        used_s=used_s,
    )

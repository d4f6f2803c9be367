"""States whose bytes follow from their tokens, so that a wrong one is seen."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ratoon.disk.fingerprint import Fingerprint
from ratoon.disk.format import Kind, State
from ratoon.disk.store import DiskConfig, DiskStore

PRINT = Fingerprint("weights", "build", "f16", "auto", "full", label="tiny f16")
OTHER = Fingerprint("weights", "build", "q8_0", "auto", "full", label="tiny q8_0")
BUDGET = 1 << 30
LONG_S = 60.0  # a limit for what takes no time


class Clock:
    """A time of day that moves when told to."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def payload(tokens: Sequence[int], n_bytes: int) -> bytes:
    return hashlib.shake_128(repr(list(tokens)).encode()).digest(n_bytes)


def make_state(
    tokens: Sequence[int], n_bytes: int = 1000, kind: Kind = Kind.WHOLE, n_spared: int = 0
) -> State:
    return State(list(tokens), memoryview(payload(tokens, n_bytes)), kind, n_spared)


@contextmanager
def opened(
    folder: Path, fingerprint: Fingerprint = PRINT, max_bytes: int = BUDGET, **options: Any
) -> Iterator[DiskStore]:
    """A store, closed at the end. ``clock`` aside, options are ``DiskConfig``'s."""
    clock = {"clock": options.pop("clock")} if "clock" in options else {}
    store = DiskStore(folder, fingerprint, DiskConfig(max_bytes, **options), **clock)
    try:
        yield store
    finally:
        store.close(LONG_S)


def keep(store: DiskStore, *states: State) -> list[str]:
    """Put and write; every one must be taken."""
    keys = [store.put(state) for state in states]
    assert store.flush(LONG_S)
    assert None not in keys
    return [key for key in keys if key is not None]


def loaded(store: DiskStore, key: str) -> bytes | memoryview | None:
    view = store.load(key)
    return None if view is None else bytes(view)


def start_writer(
    module: str, folder: Path, seed: int, n_steps: int, max_bytes: int
) -> subprocess.Popen[str]:
    """A writer in its own process, at work when this returns."""
    arguments = map(str, (folder, seed, n_steps, max_bytes))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    return process

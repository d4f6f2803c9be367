"""A process that puts, loads and forgets states in a folder until it is killed or done.

    python -m tests.unit.disk.writer FOLDER SEED N_STEPS MAX_BYTES

Prints a line once it is at work, and at the end what it found; any wrong byte is exit code 1.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests.unit.disk.states import LONG_S, keep, loaded, make_state, opened, payload

N_STATES = 24
N_BYTES = 40_000


def main(folder: str, seed: str, n_steps: str, max_bytes: str) -> int:
    rng = random.Random(int(seed))
    n_hits = n_wrong = 0
    with opened(Path(folder), max_bytes=int(max_bytes)) as store:
        sys.stdout.write("at work\n")
        sys.stdout.flush()
        for step in range(int(n_steps)):
            tokens = [rng.randrange(N_STATES)] * 10
            data = loaded(store, store.key(tokens))
            if data is not None:
                n_hits += 1
                n_wrong += data != payload(tokens, N_BYTES)
                store.touch(store.key(tokens))
            if step % 7 == 6:
                store.forget(store.key(tokens))
            else:
                store.put(make_state(tokens, N_BYTES), wait_s=LONG_S)
        if not store.flush(LONG_S):
            return 2
        n_bad = store.stats()["disk_bad"]
        keep(store, make_state([N_STATES], 10))
    sys.stdout.write(f"{n_hits} hits, {n_wrong} wrong, {n_bad} bad\n")
    return int(bool(n_wrong or n_bad))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

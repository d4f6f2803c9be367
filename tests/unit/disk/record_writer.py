"""A process that keeps records in a folder until it is killed or done.

    python -m tests.unit.disk.record_writer FOLDER SEED N_STEPS MAX_BYTES

Prints a line once it is at work, and one for each step that is safely on the disk; any wrong byte
is exit code 1.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from ratoon.disk.behind import BehindConfig, WriteBehind
from tests.unit.disk.states import LONG_S, payload

OWNER = "owner"
N_NAMES = 24
N_BYTES = 20_000


def content(name: str) -> bytes:
    """What any process keeps under this name."""
    return payload(list(name.encode()), N_BYTES)


def main(folder: str, seed: str, n_steps: str, max_bytes: str) -> int:
    rng = random.Random(int(seed))
    store = WriteBehind(Path(folder), OWNER, BehindConfig(int(max_bytes)))
    say("at work")
    for step in range(int(n_steps)):
        name = f"{rng.randrange(N_NAMES)}"
        if step % 7 == 6:
            store.remove(name)
        else:
            store.put(name, content(name))
        store.touch(f"{rng.randrange(N_NAMES)}")
        if not store.flush(LONG_S):
            return 2
        say(f"done {step}")
    found = store.load()
    store.close(LONG_S)
    return int(not found or any(data != content(name) for name, data in found))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

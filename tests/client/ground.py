"""Where servers and clients run: a network namespace of their own, with loopback only."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ratoon

ROOT = Path(__file__).parent.parent.parent
HOLDER = Path(__file__).parent / "hold.py"
# what is tested is this checkout, whatever is installed
PYTHONPATH = os.pathsep.join([str(Path(ratoon.__file__).parent.parent), str(ROOT)])


@dataclass(frozen=True, slots=True)
class Ground:
    """``enter``: what a command must begin with to run inside."""

    enter: tuple[str, ...] = ()

    def start(
        self, command: Sequence[str], *, cwd: Path, env: dict[str, str], out: IO[Any], err: IO[Any]
    ) -> subprocess.Popen[bytes]:
        """Run a command inside; the process is the command itself, so signals reach it."""
        return subprocess.Popen(
            [*self.enter, *command],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


@contextmanager
def open_ground() -> Iterator[Ground]:
    """A namespace, as long as this lasts; the machine itself where it allows none."""
    for make, join in (
        (["unshare", "-n"], ["--net"]),
        (["unshare", "-r", "-n"], ["--user", "--preserve-credentials", "--net"]),
    ):
        with _holder(make) as pid:
            if pid is not None:
                yield Ground(("nsenter", "--target", str(pid), *join, "--"))
                return
    yield Ground()


@contextmanager
def _holder(make: list[str]) -> Iterator[int | None]:
    """A process that keeps a namespace alive until its input ends."""
    command = [*make, sys.executable, str(HOLDER)]
    try:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        yield None
        return
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        is_up = holder.stdout.readline() == b"up\n"
        yield holder.pid if is_up else None
        holder.stdin.close()

"""A server in a process of its own, to be stopped, killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from ratoon.config import ENV_PREFIX
from ratoon.errors import RatoonError

START_S = 120.0
STOP_S = 60.0

T = TypeVar("T")

_ADDRESS = re.compile(r" at (http://[\d.]+:\d+)")


class ServerFailed(RatoonError):
    """A server process did not start, or ended by itself."""


class Process:
    """A server that writes its address to its log.

    ``folder`` takes the logs, one a start, and is where it stands. It runs in a process group of
    its own: a Ctrl-C is for its owner, who ends it.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.command = list(command)
        self.env = dict(env or {})
        self.url = ""
        self.n_starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it listens."""
        self.n_starts += 1
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                self.command,
                cwd=self.folder,
                env=_clean_environment() | self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.url = wait_for(self._listening_at, START_S, "the server to start")

    def _listening_at(self) -> str | None:
        if not self.is_alive:
            raise ServerFailed(f"the server ended:\n{self.log}")
        found = _ADDRESS.search(self.log)
        return found and found[1]

    @property
    def log_file(self) -> Path:
        return self.folder / f"server{self.n_starts}.log"

    @property
    def log(self) -> str:
        """What it has written since its last start."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self) -> int:
        """End it as Ctrl-C or a service manager does; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it in the midst of whatever it does."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"the server did not end within {STOP_S:.0f} s") from None
        self._process = None
        return code


def ratoon_command(*flags: str) -> list[str]:
    """``ratoon serve`` on a free port; every start finds another one."""
    return [sys.executable, "-m", "ratoon", "serve", "--port", "0", *flags]


def _clean_environment() -> dict[str, str]:
    """Settings come from the flags alone: not from the caller's environment, nor from a file in
    the folder that the server stands in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    source = str(Path(__file__).parents[2])
    paths = [source, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def wait_for(what: Callable[[], T | None], limit_s: float, name: str) -> T:
    """What ``what`` gives, once it gives something."""
    deadline = time.monotonic() + limit_s
    while (found := what()) is None:
        if time.monotonic() >= deadline:
            raise ServerFailed(f"waited {limit_s:.0f} s in vain for {name}")
        time.sleep(0.05)
    return found

"""A server in a process of its own, to be stopped, killed and started again, and its clients."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from prometheus_client.parser import text_string_to_metric_families

import ratoon
from ratoon.config import ENV_PREFIX

START_S = 120.0
STOP_S = 60.0
# States of finished requests are written within about a second; longer than that nothing came.
STILL_S = 2.0
PYTHONPATH = os.pathsep.join(
    [str(Path(ratoon.__file__).parents[1]), str(Path(__file__).parents[1])]
)

T = TypeVar("T")

_ADDRESS = re.compile(r"Ratoon serves .* at (http://[\d.]+:\d+)")
_ENDED = re.compile(r"req (\d+)\+(\d+) (\w+) reuse=(\d+) forwarded=(\d+) ")


class Ended(NamedTuple):
    """What the log says of one request. ``layer`` is what its prompt was continued from."""

    n_prompt: int
    n_output: int
    layer: str
    n_reused: int
    n_forwarded: int


class Reply(NamedTuple):
    """A whole reply; ``content`` without the ids, which are new each time."""

    content: list[dict[str, Any]]
    n_prompt: int
    n_cached: int


@dataclass(slots=True)
class ServerProcess:
    """``ratoon serve`` on a free port; every start finds another one.

    ``folder`` takes the logs, one a start. ``wrapper`` is a command that becomes the server, such
    as ``prlimit``, whose arguments come last.
    """

    folder: Path
    flags: Sequence[str]
    wrapper: Sequence[str] = ()
    url: str = ""
    n_starts: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Returns once it listens."""
        self.n_starts += 1
        ratoon_serve = [sys.executable, "-m", "ratoon", "serve", "--port", "0", *self.flags]
        # settings come from the flags alone: not from the caller's environment, nor from a file
        # in the folder it stands in
        env = {name: v for name, v in os.environ.items() if not name.startswith(ENV_PREFIX)}
        with self.log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*self.wrapper, *ratoon_serve],
                cwd=self.folder,
                env=env | {"PYTHONPATH": PYTHONPATH},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.url = wait_for(self._listening_at, START_S, "the server to start")

    def _listening_at(self) -> str | None:
        assert self.is_alive, f"the server ended:\n{self.log}"
        found = _ADDRESS.search(self.log)
        return found and found[1]

    @property
    def log_file(self) -> Path:
        return self.folder / f"server{self.n_starts}.log"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has written since its last start."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    @property
    def ended(self) -> list[Ended]:
        """The requests that have ended since its last start."""
        found = (match.groups() for match in _ENDED.finditer(self.log))
        return [
            Ended(int(prompt), int(output), layer, int(reused), int(forwarded))
            for prompt, output, layer, reused, forwarded in found
        ]

    @property
    def rss_bytes(self) -> int:
        """Memory it holds, without what it has mapped from files."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(text.partition("RssAnon:")[2].split()[0]) << 10

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
        code = self._process.wait(STOP_S)
        self._process = None
        return code

    def figures(self) -> dict[str, int]:
        """The cache's figures: ``host_bytes``, ``disk_snapshots``, ..."""
        response = httpx.get(f"{self.url}/metrics", timeout=60).raise_for_status()
        return figures_of(response.text)

    def wait_until_written(self, limit_s: float = 60.0) -> dict[str, int]:
        """The figures once all that is worth keeping is on the disk. No request may be running."""
        last: dict[str, int] = {}
        since_s = time.monotonic()

        def settled() -> dict[str, int] | None:
            nonlocal last, since_s
            now = {k: v for k, v in self.figures().items() if k.startswith("disk_")}
            if now != last or now.get("disk_pending_bytes"):
                last, since_s = now, time.monotonic()
            return now if time.monotonic() - since_s >= STILL_S else None

        return wait_for(settled, limit_s, "the states to be written")


def figures_of(page: str) -> dict[str, int]:
    """The cache's figures in a page of metrics, by the names that the engine gives them."""
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            match family.name:
                case "ratoon_tier_bytes":
                    found[f"{sample.labels['tier']}_bytes"] = int(sample.value)
                case "ratoon_tier_tokens":
                    found[f"{sample.labels['tier']}_tokens"] = int(sample.value)
                case "ratoon_cache":
                    found[sample.labels["figure"]] = int(sample.value)
    return found


@contextlib.contextmanager
def server_process(
    folder: Path, *flags: str, wrapper: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """A running server; however this ends, no process is left."""
    folder.mkdir(parents=True, exist_ok=True)
    server = ServerProcess(folder, flags, wrapper)
    try:
        server.start()
        yield server
    finally:
        server.kill()


def verify(states: Path) -> list[str]:
    """What ``ratoon cache verify`` finds wrong, and what was left half-written."""
    command = [sys.executable, "-m", "ratoon", "cache", "verify", "--cache-dir", str(states)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True
    )
    found = [] if done.returncode == 0 else [done.stdout + done.stderr]
    return found + [f"half-written: {part.name}" for part in states.glob(".*.part")]


def ask(url: str, body: dict[str, Any], max_tokens: int) -> Reply:
    """Send a request, made greedy and short, and wait for the whole reply."""
    body = body | {"max_tokens": max_tokens, "temperature": 0, "stream": False}
    response = httpx.post(f"{url}/v1/messages", json=body, timeout=120).raise_for_status()
    return reply_of(response.json())


def reply_of(message: dict[str, Any]) -> Reply:
    usage = message["usage"]
    n_cached = usage["cache_read_input_tokens"]
    n_prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"] + n_cached
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return Reply(content, n_prompt, n_cached)


def wait_for(what: Callable[[], T | None], limit_s: float, name: str) -> T:
    """What ``what`` gives, once it gives something."""
    deadline = time.monotonic() + limit_s
    while (found := what()) is None:
        assert time.monotonic() < deadline, f"waited in vain for {name}"
        time.sleep(0.05)
    return found

"""A server and a client on one ground, as a user would start them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.client.ground import PYTHONPATH, Ground
from tests.client.recorder import Record, read_records

START_S = 120
RUN_S = 180
FORMAT = ["--output-format", "stream-json", "--verbose", "--include-partial-messages"]
T = TypeVar("T")


@dataclass(slots=True)
class Server:
    """``ratoon serve`` with replies from the scripts, or those of the model."""

    ground: Ground
    folder: Path
    work: Path
    flags: Sequence[str]
    is_scripted: bool = True
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _n_starts: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has written since it was started last, as the records below."""
        return self._file("log").read_text(encoding="utf-8", errors="replace")

    @property
    def records(self) -> list[Record]:
        """The model calls, once none is under way any more."""
        records = wait_for(self._settled, RUN_S, "the last request to end")
        return [record for record in records if record.path == "/v1/messages"]

    @property
    def seen(self) -> list[Record]:
        """The requests that have ended so far."""
        return read_records(self._file("jsonl"))[0]

    def _settled(self) -> list[Record] | None:
        records, n_open = read_records(self._file("jsonl"))
        return None if n_open else records

    def _file(self, kind: str) -> Path:
        return self.folder / f"server{self._n_starts}.{kind}"

    def start(self) -> None:
        """Returns once it listens; the port stays the same after the first time."""
        self._n_starts += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        module = "tests.client.scripted_server" if self.is_scripted else "ratoon"
        command = [sys.executable, "-m", module, "serve", "--port", str(self.port), *self.flags]
        command += ["--cache-dir", str(self.folder / "states")]
        env = {**os.environ, "PYTHONPATH": PYTHONPATH, "RECORDS": str(self._file("jsonl"))}
        with self._file("log").open("wb") as log:
            self._process = self.ground.start(command, cwd=self.work, env=env, out=log, err=log)
        found = wait_for(self._listening_at, START_S, "the server to start")
        self.port = int(found[1])

    def _listening_at(self) -> re.Match[str] | None:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        return re.search(r"Ratoon serves .* at http://[\d.]+:(\d+)", self.log)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None


@dataclass(slots=True)
class Run:
    """One run of the client; ``events`` are its JSON lines."""

    process: subprocess.Popen[bytes]
    folder: Path

    def wait(self) -> Run:
        """Let it end, successfully."""
        code = self.end()
        assert code == 0, f"{code}: {self.errors}"
        return self

    def end(self, number: signal.Signals | None = None) -> int:
        """Its exit code, once it has ended; ``number`` tells it to."""
        if number is not None:
            self.process.send_signal(number)
        try:
            return self.process.wait(RUN_S)
        finally:
            self.process.kill()

    @property
    def errors(self) -> str:
        return (self.folder / "err").read_text(encoding="utf-8", errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = (self.folder / "out").read_text(encoding="utf-8").splitlines(keepends=True)
        whole = [line for line in lines if line.startswith("{") and line.endswith("\n")]
        return [json.loads(line) for line in whole]

    @property
    def stream(self) -> list[dict[str, Any]]:
        """The API's events as the client passed them on."""
        return [line["event"] for line in self.events if line["type"] == "stream_event"]

    @property
    def result(self) -> dict[str, Any]:
        return next(line for line in self.events if line["type"] == "result")

    @property
    def tool_results(self) -> list[dict[str, Any]]:
        """What its tools answered, those of sub-agents included."""
        found = []
        for line in self.events:
            content = line["message"]["content"] if line["type"] == "user" else ()
            found += [b for b in content if isinstance(b, dict) and b["type"] == "tool_result"]
        return found


@dataclass(slots=True)
class Client:
    """Claude Code as ``ratoon claude`` starts it, with a home folder of its own."""

    ground: Ground
    bin: Path
    folder: Path
    work: Path
    env: dict[str, str] = field(default_factory=dict)
    _n_runs: int = 0

    def run(self, url: str, *arguments: str) -> Run:
        return self.start(url, *arguments).wait()

    def start(self, url: str, *arguments: str) -> Run:
        """Begin a run; what follows the address goes to Claude Code."""
        self._n_runs += 1
        folder = self.folder / f"run{self._n_runs}"
        folder.mkdir(parents=True)
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        # nothing of the caller's environment reaches the client
        env = {
            "PATH": os.pathsep.join([str(self.bin), "/usr/bin", "/bin"]),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PYTHONPATH": PYTHONPATH,
            **self.env,
        }
        command = [sys.executable, "-m", "ratoon", "claude", "--url", url, "--", *arguments]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            process = self.ground.start(
                [*command, *FORMAT], cwd=self.work, env=env, out=out, err=err
            )
        return Run(process, folder)


def make_repository(folder: Path) -> None:
    """A small calculator under git whose operators are wrong; what was there is gone."""
    folder.mkdir(exist_ok=True)
    for entry in folder.iterdir():  # a server stands in the folder itself
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (folder / "src").mkdir()
    (folder / "tests").mkdir()
    (folder / "README.md").write_text("# calc\nA tiny calculator.\n", encoding="utf-8")
    for name in ("add", "sub", "mul"):
        text = f"def {name}(a, b):\n    return a - b\n"
        (folder / "src" / f"{name}.py").write_text(text, encoding="utf-8")
    test = 'import sys; sys.path.insert(0, "src")\nfrom add import add\nassert add(2, 2) == 4\n'
    (folder / "tests" / "test_add.py").write_text(test, encoding="utf-8")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "config", "user.name", "scratch")
    git(folder, "config", "user.email", "scratch@example.invalid")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Begin")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def wait_for(what: Callable[[], T | None], limit_s: float, name: str) -> T:
    """What ``what`` gives, once it gives something."""
    deadline = time.monotonic() + limit_s
    while (found := what()) is None:
        assert time.monotonic() < deadline, f"waited in vain for {name}"
        time.sleep(0.05)
    return found

"""The real Claude Code client, installed once per machine, beside servers with known replies."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.client.driver import Client, Run, Server, make_repository
from tests.client.ground import Ground, open_ground
from tests.client.recorder import Record

VERSION = "2.1.332"
INSTALL_S = 300
TOOLS = "Bash Read Edit Write Agent ToolSearch CronList"


@dataclass(frozen=True, slots=True)
class Stage:
    """A server, a client and the folder in which both stand, a small repository."""

    server: Server
    client: Client
    work: Path

    def play(self, script: str, *arguments: str) -> tuple[Run, list[Record]]:
        """One run of the client to its end, and the model calls it took."""
        n_before = len(self.server.records)
        run = self.begin(script, *arguments).wait()
        return run, self.server.records[n_before:]

    def begin(self, script: str, *arguments: str) -> Run:
        prompt = ["-p", f"[[S:{script}]] Please do what the script says."]
        return self.client.start(self.server.url, *arguments, *prompt, "--allowedTools", TOOLS)


# opens a stage whose server gets these flags
Opened = Callable[..., AbstractContextManager[Stage]]


@pytest.fixture(scope="session")
def client_bin() -> Path:
    """The folder that holds ``claude``; skips where npm can't provide it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ratoon" / f"claude-code-{VERSION}"
    if not folder.is_dir():
        _install(folder)
    return folder / "node_modules" / ".bin"


@pytest.fixture(scope="session")
def ground() -> Iterator[Ground]:
    with open_ground() as ground:
        yield ground


@pytest.fixture(scope="session")
def opened(
    ground: Ground, client_bin: Path, cut1_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Opened:
    """Opens stages with known replies."""

    def open_scripted(*flags: str) -> AbstractContextManager[Stage]:
        folder = tmp_path_factory.mktemp("stage")
        return open_stage(ground, client_bin, folder, ("--model", str(cut1_path), *flags))

    return open_scripted


@contextmanager
def open_stage(
    ground: Ground,
    client_bin: Path,
    folder: Path,
    flags: tuple[str, ...],
    *,
    is_scripted: bool = True,
) -> Iterator[Stage]:
    """Start a server, and stop it in the end."""
    work = folder / "work"
    make_repository(work)
    server = Server(ground, folder / "server", work, flags, is_scripted)
    server.start()
    try:
        yield Stage(server, Client(ground, client_bin, folder / "client", work), work)
    finally:
        server.stop()


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # renamed when whole, so that an interrupted install is never taken for one
    work = tempfile.mkdtemp(dir=folder.parent)
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--fetch-retries=1"]
    command += ["--prefix", work, "--save-exact", f"@anthropic-ai/claude-code@{VERSION}"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S)
        os.rename(work, folder)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        shutil.rmtree(work)
        pytest.skip(f"npm can't install Claude Code {VERSION}")

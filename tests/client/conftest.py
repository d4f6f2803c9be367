"""The real Claude Code client, installed once per machine, and a way to run it off the net."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.inside import Outcome, Request

VERSION = "2.1.332"
INSTALL_S = 300
INSIDE = Path(__file__).parent / "inside.py"

Drive = Callable[[list[str], list[list[str]]], Outcome]


@pytest.fixture(scope="session")
def client_bin() -> Path:
    """The folder that holds ``claude``; skips where npm can't provide it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "ratoon" / f"claude-code-{VERSION}"
    if not folder.is_dir():
        _install(folder)
    return folder / "node_modules" / ".bin"


@pytest.fixture
def drive(client_bin: Path, tmp_path: Path) -> Drive:
    """Start a server with the given flags, run the client as often as lists are given."""

    def run(server: list[str], runs: list[list[str]]) -> Outcome:
        home, work = tmp_path / "home", tmp_path / "work"
        home.mkdir()
        work.mkdir()
        (work / "README.md").write_text("# calc\nA tiny calculator.\n", encoding="utf-8")
        request = Request(
            server=server, runs=runs, client_bin=str(client_bin), home=str(home), work=str(work)
        )
        command = [*_isolation(), sys.executable, str(INSIDE), json.dumps(request)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        outcome: Outcome = json.loads(done.stdout)
        return outcome

    return run


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


def _isolation() -> list[str]:
    """A network namespace with loopback only, where the machine allows one."""
    for command in (["unshare", "-n"], ["unshare", "-r", "-n"]):
        try:
            subprocess.run([*command, "true"], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return [*command, "--"]
    return []

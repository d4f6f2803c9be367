"""Run a server and the client beside each other; started inside a network namespace of their own.

    python inside.py REQUEST    reads a ``Request`` as JSON, writes an ``Outcome`` to stdout

It knows nothing of pytest: the namespace begins with this process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from typing import Any, TypedDict

import httpx

START_S = 120
RUN_S = 180


class Request(TypedDict):
    """``runs``: the client's arguments, one list a run."""

    server: list[str]
    runs: list[list[str]]
    client_bin: str
    home: str
    work: str


class Outcome(TypedDict):
    runs: list[dict[str, Any]]
    log: str


def main() -> None:
    request: Request = json.loads(sys.argv[1])
    _raise_loopback()
    url = f"http://127.0.0.1:{_free_port()}"
    log_path = os.path.join(request["home"], "server.log")
    with open(log_path, "w+", encoding="utf-8") as log:
        command = [sys.executable, "-m", "ratoon", "serve", "--port", url.rpartition(":")[2]]
        server = subprocess.Popen([*command, *request["server"]], stdout=log, stderr=log)
        try:
            _wait(url, server)
            runs = [_run_client(request, url, arguments) for arguments in request["runs"]]
        finally:
            server.terminate()
            server.wait(30)
            log.seek(0)
            text = log.read()
    json.dump(Outcome(runs=runs, log=text), sys.stdout)


def _run_client(request: Request, url: str, arguments: list[str]) -> dict[str, Any]:
    # nothing of the caller's environment reaches the client
    env = {
        "PATH": os.pathsep.join([request["client_bin"], "/usr/bin", "/bin"]),
        "HOME": request["home"],
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    done = subprocess.run(
        [sys.executable, "-m", "ratoon", "claude", "--url", url, "--", *arguments],
        env=env,
        cwd=request["work"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_S,
    )
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            httpx.get(f"{url}/health", timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.2)
    sys.exit("the server did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _raise_loopback() -> None:
    """A new network namespace has a loopback device that is down; harmless elsewhere."""
    if shutil.which("ip"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=False, stderr=subprocess.DEVNULL)
        return
    set_flags, up_and_running = 0x8914, 0x1 | 0x40  # SIOCSIFFLAGS, IFF_UP | IFF_RUNNING
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sh14x", b"lo", up_and_running))


if __name__ == "__main__":
    main()

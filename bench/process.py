"""A Ratoon in a process of its own: its log, its figures, and its clients."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

import ratoon
from ratoon.bench.process import Process, ratoon_command, wait_for
from ratoon.client import RatoonClient, RouteResult
from ratoon.errors import RatoonError
from ratoon.weights import check_weights, embedded_weights

# States of finished requests are written within about a second; longer than that nothing came.
STILL_S = 2.0
PYTHONPATH = os.pathsep.join(
    [str(Path(ratoon.__file__).parents[1]), str(Path(__file__).parents[1])]
)

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


class ServerProcess(Process):
    """``ratoon serve``, and what it tells of itself.

    ``wrapper`` is a command that becomes the server, such as ``prlimit``; it comes first.
    """

    def __init__(self, folder: Path, flags: Sequence[str], wrapper: Sequence[str] = ()) -> None:
        super().__init__(folder, [*wrapper, *ratoon_command(*flags)])

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


def say(text: str) -> None:
    """A line that is seen at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def decide(client: RatoonClient, domain_id: str, query: str, top_k: int = 5) -> RouteResult:
    """Which tool, without its arguments."""
    return client.route(domain_id, query, top_k=top_k, include_arguments=False)


def parse_sized(parser: argparse.ArgumentParser, sizes: list[int]) -> argparse.Namespace:
    """The command line, with a model that is there and numbers of tools besides."""
    parser.add_argument("--model", type=Path, default=embedded_weights(), help="GGUF file")
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(each) for each in text.split(",")],
        default=sizes,
        help="numbers of tools",
    )
    args = parser.parse_args()
    try:
        check_weights(args.model)
    except RatoonError as error:
        parser.error(str(error))
    return args


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

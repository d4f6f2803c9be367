"""Random clients on a server that is killed and restarted at random, with too little memory.

    python -m bench.soak [--kind llama] [--requests 2000 | --minutes M] [--seed 0] [--clients 4]

The model is tiny and random, in exact mode; host and disk hold a few conversations, so that every
tier evicts. Passes if no request failed while the server was up, every sampled reply is that of a
model that computes its prompt from nothing, no tier outgrew its budget, ``ratoon cache verify``
finds nothing, and the memory of the processes that lived longest stays what it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.cold import ColdModel
from bench.process import ServerProcess, figures_of, say, verify
from bench.traffic import Conversation, Traffic
from ratoon.weights import embedded_weights
from tests.synthetic.tiny import RECIPES, write_tiny

N_CTX = 2048
N_LONGEST = 900  # words of a conversation
N_SAMPLES = 60  # replies that are compared
N_TYPICAL = 500  # tokens of a state, for the budgets
HANG_UPS = 0.08
WATCH_S = 0.5
N_WARM = 700  # requests until all that has a limit is full, 512 remembered prompts among them
N_LOOKED_AT = 300  # further requests over which memory is looked at
MAX_SLOPE = 4.0  # MB for 1,000 requests
TIMEOUT_S = 120.0


@dataclass(slots=True)
class Life:
    """One server process: requests answered, memory after so many of them, its last figures."""

    n_served: int = 0
    memory: list[tuple[int, int]] = field(default_factory=list)
    figures: dict[str, int] = field(default_factory=dict)

    @property
    def is_long(self) -> bool:
        return self.n_served >= N_WARM + N_LOOKED_AT

    @property
    def warm(self) -> list[tuple[int, int]]:
        return [(n, rss) for n, rss in self.memory if n >= N_WARM]

    @property
    def slope(self) -> float:
        """MB for 1,000 requests, of one that lived long."""
        ns, sizes = zip(*self.warm, strict=True)
        return statistics.linear_regression(ns, sizes).slope * 1000 / 1e6


class Soak:
    """The clients and the fate of the server."""

    def __init__(self, server: ServerProcess, seed: int, n_requests: int, limit_s: float) -> None:
        self.server = server
        self.rng = random.Random(f"soak {seed}")
        self.traffic = Traffic(seed, N_LONGEST)
        self.n_requests, self.until_s = n_requests, time.monotonic() + limit_s
        self.n_begun = self.n_whole = 0
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.samples: list[tuple[Conversation, int, str]] = []
        self.lives: list[Life] = []
        self._is_up = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """Whether enough was asked, or failed."""
        is_done = self.n_begun >= self.n_requests or time.monotonic() >= self.until_s
        return is_done or len(self.faults) > 20

    async def run(self, n_clients: int) -> None:
        await self._start()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(self._watch())
            await asyncio.gather(self._fate(), *(self._client() for _ in range(n_clients)))
            watch.cancel()
        await self._look()
        await self._end("stop")

    # --- clients -------------------------------------------------------------------------------

    async def _client(self) -> None:
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            while not self.is_over:
                await self._is_up.wait()
                self.n_begun += 1
                asked = self.traffic.next()
                await self._send(client, asked, self.rng.randint(1, 8))
                if self.rng.random() < 0.1:
                    await asyncio.sleep(self.rng.random())

    async def _send(self, client: httpx.AsyncClient, asked: Conversation, n_max: int) -> None:
        life = self.lives[-1]
        body = asked.body(n_max) | {"stream": self.rng.random() < 0.7}
        patience_s = self.rng.random() * 0.5 if self.rng.random() < HANG_UPS else None
        try:
            async with asyncio.timeout(patience_s):
                text = await reply_to(client, self.server.url, body)
        except TimeoutError:
            self.counts["hung up"] += 1
            self.traffic.replied(asked, "")
        except (httpx.HTTPError, BrokenReply) as error:
            # what a process that is going down says or does not say is no fault
            is_fault = self._is_up.is_set() and life is self.lives[-1]
            self.counts["broken" if is_fault else "cut off by its end"] += 1
            if is_fault:
                self.faults.append(f"{type(error).__name__}: {error}")
        else:
            self.counts["answered"] += 1
            life.n_served += 1
            self.traffic.replied(asked, text)
            self._sample(asked, n_max, text)

    def _sample(self, asked: Conversation, n_max: int, text: str) -> None:
        """Each reply is as likely as any other to be compared in the end."""
        if asked.is_echoing:
            return
        self.n_whole += 1
        if len(self.samples) < N_SAMPLES:
            self.samples.append((asked, n_max, text))
        elif (i := self.rng.randrange(self.n_whole)) < N_SAMPLES:
            self.samples[i] = (asked, n_max, text)

    # --- the server ----------------------------------------------------------------------------

    async def _start(self) -> None:
        await asyncio.to_thread(self.server.start)
        self.lives.append(Life())
        self._is_up.set()

    async def _end(self, way: str) -> None:
        self._is_up.clear()
        self.counts[way] += 1
        code = await asyncio.to_thread(self.server.stop if way == "stop" else self.server.kill)
        if code:
            self.faults.append(f"the server ended with code {code}")
        if "Traceback" in self.server.log:
            self.faults.append(f"a traceback in {self.server.log_file}")

    async def _fate(self) -> None:
        for n in life_spans(self.rng, self.n_requests):
            while self.lives[-1].n_served < n:
                if self.is_over:
                    return
                await asyncio.sleep(0.02)
            await self._end(self.rng.choice(["kill", "stop"]))
            await self._start()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if not self._is_up.is_set():
                continue
            if not self.server.is_alive:
                self.faults.append(f"the server died:\n{self.server.log[-2000:]}")
                return
            with contextlib.suppress(httpx.HTTPError):  # it is being ended
                await self._look()

    async def _look(self) -> None:
        life = self.lives[-1]
        rss = self.server.rss_bytes
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            page = (await client.get(f"{self.server.url}/metrics")).raise_for_status().text
        life.memory.append((life.n_served, rss))
        life.figures = figures_of(page)
        for tier in ("host", "disk"):
            n_bytes, n_most = (life.figures[f"{tier}_{what}"] for what in ("bytes", "max_bytes"))
            if n_bytes > n_most:
                self.faults.append(f"the {tier} tier has {n_bytes} bytes of {n_most}")


class BrokenReply(Exception):
    """A reply that failed or ended too soon."""


async def reply_to(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> str:
    """The text of a whole reply. Raises BrokenReply, httpx.HTTPError."""
    text, is_whole = "", False
    async with client.stream("POST", f"{url}/v1/messages", json=body) as response:
        if response.is_error:
            raise BrokenReply(f"{response.status_code} {(await response.aread())[:300]!r}")
        if not body["stream"]:
            message = json.loads(await response.aread())
            return "".join(block.get("text", "") for block in message["content"])
        async for line in response.aiter_lines():
            if not line.startswith("data:"):
                continue
            event = json.loads(line.removeprefix("data:"))
            match event["type"]:
                case "content_block_delta":
                    text += event["delta"].get("text", "")
                case "message_stop":
                    is_whole = True
                case "error":
                    raise BrokenReply(str(event["error"]))
    if not is_whole:
        raise BrokenReply("the stream ended before message_stop")
    return text


def life_spans(rng: random.Random, n_requests: int) -> Iterator[int]:
    """Requests until each end: soon, for many restarts, but for one that shows if memory grows."""
    yield from (rng.randint(2, 50) for _ in range(6))
    yield int(0.6 * n_requests)
    while True:
        yield rng.randint(2, 50)


def other_replies(soak: Soak, cold: ColdModel) -> Iterator[str]:
    """What differs from a cold model's replies."""
    for asked, n_max, text in soak.samples:
        expected = cold.reply(asked.body(n_max))
        if text != expected:
            yield f"{text!r} instead of {expected!r} to {asked.n_words} words"


def report(soak: Soak) -> list[str]:
    """Print what happened; returns what was missing."""
    sums: Counter[str] = Counter()
    for life in soak.lives:
        sums.update(life.figures)
    say(f"{len(soak.lives)} processes; requests and ends: {dict(soak.counts)}")
    figures = ("host_evictions", "disk_written", "disk_loaded", "disk_evicted", "disk_bad")
    say(", ".join(f"{name} {sums[name]}" for name in figures))
    long = [life for life in soak.lives if life.is_long]
    for life in long:
        first, last = life.warm[0][1], life.warm[-1][1]
        say(
            f"memory after {N_WARM} and {life.n_served} requests: {first / 1e6:.1f} and "
            f"{last / 1e6:.1f} MB, slope {life.slope:+.2f} MB/1,000 requests"
        )
    missing = [f"{name} is 0" for name in figures[:-1] if not sums[name]]
    if not long:
        say("no process lived long enough to see its memory grow")
        return missing
    slope = statistics.median(life.slope for life in long)
    say(f"memory is {'flat' if slope <= MAX_SLOPE else 'growing'}")
    return missing if slope <= MAX_SLOPE else [*missing, "memory grows"]


def run(options: argparse.Namespace, folder: Path) -> list[str]:
    """All faults found."""
    model = write_tiny(options.kind, embedded_weights(), folder / f"{options.kind}.gguf")
    with ColdModel.opened(model, N_CTX) as cold:
        n_state = N_TYPICAL * cold.shape.bytes_per_token + cold.shape.state_bytes
        flags = ["--model", model, "--n-ctx", N_CTX, "--n-seq", 4, "--threads", 1, "--exact"]
        flags += ["--host-bytes", 5 * n_state, "--disk-bytes", 15 * n_state]
        flags += ["--cache-dir", folder / "states", "--replay-bytes", 100_000]
        server = ServerProcess(folder, [str(flag) for flag in flags])
        limit_s = options.minutes * 60 if options.minutes else float("inf")
        soak = Soak(server, options.seed, options.requests, limit_s)
        try:
            asyncio.run(soak.run(options.clients))
        finally:
            server.kill()
        faults = [*soak.faults, *report(soak)]
        say(f"comparing {len(soak.samples)} replies with a cold model's")
        faults += other_replies(soak, cold)
    return faults + verify(folder / "states")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=RECIPES, default="llama", help="the model's architecture")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="keep logs and states here")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.folder is None:
            options.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options.folder.mkdir(parents=True, exist_ok=True)
        faults = run(options, options.folder)
    for fault in faults[:20]:
        say(fault)
    say("FAIL" if faults else "PASS")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()

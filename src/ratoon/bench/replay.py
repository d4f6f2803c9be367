"""Replay a trace against a running server, agents side by side, and report what was reused."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from ratoon.bench.trace import Recorded, vary_billing

# the recorder's connection is not ours
_DROPPED_HEADERS = {
    "accept-encoding",
    "authorization",
    "connection",
    "content-length",
    "host",
    "x-api-key",
}


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to send a trace. Replies are cut short: the next recorded request doesn't use them."""

    url: str
    api_key: str | None = None
    max_tokens: int = 8
    vary_billing: bool = False
    timeout_s: float = 1800.0


@dataclass(slots=True)
class Result:
    """What one request cost. Times are seconds; ``ttft_s`` is ``None`` if no text came."""

    index: int
    agent: str
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    ttft_s: float | None = None
    wall_s: float = 0.0
    error: str | None = None

    @property
    def n_forwarded(self) -> int:
        """Prompt tokens the server had to compute."""
        return self.n_prompt - self.n_cached


@dataclass(frozen=True, slots=True)
class Report:
    """The results in the trace's order."""

    results: list[Result]
    wall_s: float

    @property
    def n_prompt(self) -> int:
        return sum(result.n_prompt for result in self.results)

    @property
    def n_cached(self) -> int:
        return sum(result.n_cached for result in self.results)

    @property
    def n_forwarded(self) -> int:
        return sum(result.n_forwarded for result in self.results)

    @property
    def errors(self) -> list[Result]:
        return [result for result in self.results if result.error]

    def to_json(self) -> dict[str, Any]:
        """Plain data, totals first."""
        totals = {
            "requests": len(self.results),
            "errors": len(self.errors),
            "n_prompt": self.n_prompt,
            "n_cached": self.n_cached,
            "n_forwarded": self.n_forwarded,
            "wall_s": self.wall_s,
        }
        rows = [{**asdict(one), "n_forwarded": one.n_forwarded} for one in self.results]
        return {"totals": totals, "requests": rows}


def replay(requests: Sequence[Recorded], options: ReplayOptions) -> Report:
    """Send all requests as their ``after`` allows and wait for every answer."""
    return asyncio.run(replay_async(requests, options))


async def replay_async(requests: Sequence[Recorded], options: ReplayOptions) -> Report:
    """``replay`` for a caller that has an event loop."""
    answered = [asyncio.Event() for _ in requests]
    started = time.perf_counter()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=options.url, timeout=options.timeout_s, limits=limits, trust_env=False
    ) as client:

        async def one(request: Recorded) -> Result:
            for index in request.after:
                await answered[index].wait()
            try:
                return await _send(client, request, options)
            finally:
                answered[request.index].set()

        results = await asyncio.gather(*(one(request) for request in requests))
    return Report(list(results), time.perf_counter() - started)


async def _send(client: httpx.AsyncClient, request: Recorded, options: ReplayOptions) -> Result:
    if options.vary_billing:
        request = vary_billing(request)
    body = request.body | {"max_tokens": options.max_tokens, "temperature": 0, "stream": True}
    headers = {k: v for k, v in request.headers.items() if k not in _DROPPED_HEADERS}
    if options.api_key:
        headers["x-api-key"] = options.api_key
    reply = _Reply(Result(request.index, request.agent.id or "main"))
    try:
        async with client.stream("POST", request.path, json=body, headers=headers) as response:
            if response.is_error:
                text = (await response.aread()).decode("utf-8", "replace")
                reply.result.error = f"{response.status_code} {text[:300]}"
            else:
                async for line in response.aiter_lines():
                    reply.feed(line)
                reply.end()
    except httpx.HTTPError as error:
        reply.result.error = f"{type(error).__name__}: {error}"
    reply.result.wall_s = reply.elapsed_s
    return reply.result


@dataclass(slots=True)
class _Reply:
    """Reads one SSE stream into its result."""

    result: Result
    started: float = field(default_factory=time.perf_counter)
    usage: dict[str, int] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.started

    def feed(self, line: str) -> None:
        if not line.startswith("data:"):
            return
        event = json.loads(line.removeprefix("data:"))
        match event["type"]:
            case "message_start":
                self._count(event["message"].get("usage"))
            case "content_block_delta" if self.result.ttft_s is None:
                self.result.ttft_s = self.elapsed_s
            case "message_delta":
                self._count(event.get("usage"))
            case "message_stop":
                self.is_complete = True
            case "error":
                self.result.error = str(event["error"].get("message"))

    def end(self) -> None:
        if not self.is_complete and self.result.error is None:
            self.result.error = "the stream ended before message_stop"

    def _count(self, usage: dict[str, Any] | None) -> None:
        # the last word counts: what was cached may be known only after message_start
        self.usage |= {k: v for k, v in (usage or {}).items() if isinstance(v, int)}
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        self.result.n_prompt = sum(self.usage.get(part, 0) for part in parts)
        self.result.n_cached = self.usage.get("cache_read_input_tokens", 0)
        self.result.n_output = self.usage.get("output_tokens", 0)

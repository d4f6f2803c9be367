"""Send one recorded request and time its stream."""

from __future__ import annotations

import json
import time
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
    """What one request cost. Times are seconds; ``ttft_s`` is ``None`` if no token came.

    ``deltas_s``: when each piece of the reply came, by the clock of ``began_s``.
    """

    index: int
    agent: str
    n_prompt: int = 0
    n_cached: int = 0
    n_output: int = 0
    ttft_s: float | None = None
    wall_s: float = 0.0
    error: str | None = None
    began_s: float = field(default_factory=time.perf_counter)
    deltas_s: list[float] = field(default_factory=list)

    @property
    def n_forwarded(self) -> int:
        """Prompt tokens the server had to compute."""
        return self.n_prompt - self.n_cached

    def to_json(self) -> dict[str, Any]:
        """Plain data without the single times."""
        fields = {k: v for k, v in asdict(self).items() if k not in ("began_s", "deltas_s")}
        return {**fields, "n_forwarded": self.n_forwarded}


def client(options: ReplayOptions) -> httpx.AsyncClient:
    """A new connection for each request, and no proxy in between.

    A connection that is kept may be closed by the server at the moment it is used again.
    """
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(
        base_url=options.url, timeout=options.timeout_s, limits=limits, trust_env=False
    )


async def send(
    connections: httpx.AsyncClient,
    request: Recorded,
    options: ReplayOptions,
    result: Result | None = None,
) -> Result:
    """Send a request and read its reply; ``result`` can be watched meanwhile."""
    if options.vary_billing:
        request = vary_billing(request)
    body = request.body | {"max_tokens": options.max_tokens, "temperature": 0, "stream": True}
    headers = {k: v for k, v in request.headers.items() if k not in _DROPPED_HEADERS}
    if options.api_key:
        headers["x-api-key"] = options.api_key
    result = result or new_result(request)
    reply = ReplyReader(result)
    try:
        async with connections.stream("POST", request.path, json=body, headers=headers) as response:
            if response.is_error:
                text = (await response.aread()).decode("utf-8", "replace")
                result.error = f"{response.status_code} {text[:300]}"
            else:
                async for line in response.aiter_lines():
                    reply.feed(line)
                reply.end()
    except httpx.HTTPError as error:
        result.error = f"{type(error).__name__}: {error}"
    result.wall_s = reply.elapsed_s
    return result


def new_result(request: Recorded) -> Result:
    """An empty result; its clock starts now."""
    return Result(request.index, request.agent.id or "main")


@dataclass(slots=True)
class ReplyReader:
    """Reads one SSE stream into its result."""

    result: Result
    usage: dict[str, int] = field(default_factory=dict)
    is_complete: bool = False

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.result.began_s

    def feed(self, line: str) -> None:
        if not line.startswith("data:"):
            return
        event = json.loads(line.removeprefix("data:"))
        match event["type"]:
            case "message_start":
                self._count(event["message"].get("usage"))
            case "content_block_delta":
                self._delta()
            case "message_delta":
                self._count(event.get("usage"))
                if self.result.n_output and self.result.ttft_s is None:
                    self._delta()  # tokens without text, such as a call that was cut
            case "message_stop":
                self.is_complete = True
            case "error":
                self.result.error = str(event["error"].get("message"))
            case _ if "code" in event:  # llama-server's form of an error
                self.result.error = str(event.get("message"))

    def end(self) -> None:
        if not self.is_complete and self.result.error is None:
            self.result.error = "the stream ended before message_stop"

    def _delta(self) -> None:
        self.result.deltas_s.append(time.perf_counter())
        if self.result.ttft_s is None:
            self.result.ttft_s = self.elapsed_s

    def _count(self, usage: dict[str, Any] | None) -> None:
        # the last word counts: what was cached may be known only after message_start
        self.usage |= {k: v for k, v in (usage or {}).items() if isinstance(v, int)}
        parts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        self.result.n_prompt = sum(self.usage.get(part, 0) for part in parts)
        self.result.n_cached = self.usage.get("cache_read_input_tokens", 0)
        self.result.n_output = self.usage.get("output_tokens", 0)

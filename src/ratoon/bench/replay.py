"""Replay a trace against a running server, agents side by side, and report what was reused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratoon.bench.sending import ReplayOptions, Result, client, send
from ratoon.bench.trace import Recorded

__all__ = ["ReplayOptions", "Report", "Result", "replay", "replay_async"]


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
    def n_output(self) -> int:
        return sum(result.n_output for result in self.results)

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
        return {"totals": totals, "requests": [one.to_json() for one in self.results]}


def replay(requests: Sequence[Recorded], options: ReplayOptions) -> Report:
    """Send all requests as their ``after`` allows and wait for every answer."""
    return asyncio.run(replay_async(requests, options))


async def replay_async(requests: Sequence[Recorded], options: ReplayOptions) -> Report:
    """``replay`` for a caller that has an event loop."""
    answered = [asyncio.Event() for _ in requests]
    started = time.perf_counter()
    async with client(options) as connections:

        async def one(request: Recorded) -> Result:
            for index in request.after:
                await answered[index].wait()
            try:
                return await send(connections, request, options)
            finally:
                answered[request.index].set()

        results = await asyncio.gather(*(one(request) for request in requests))
    return Report(list(results), time.perf_counter() - started)

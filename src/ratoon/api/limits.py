"""How often each key is used, and how often it may be. Pure: the time is an argument."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from dataclasses import dataclass

WINDOW_S = 60.0
MAX_NAMES = 10_000  # those that have been quiet longest are forgotten


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reset_s``: seconds until the oldest request of the last minute no longer counts."""

    is_allowed: bool
    limit: int
    remaining: int
    reset_s: int


class SlidingWindow:
    """Counts the requests of the last minute, by name; a refused one does not count."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, name: str, limit: int, now: float) -> Verdict:
        """Let a request in, or not. ``limit``: most requests in a minute, at least 1."""
        times = self._recent(name, now)
        is_allowed = len(times) < limit
        if is_allowed:
            times.append(now)
        wait_s = times[0] + WINDOW_S - now
        return Verdict(is_allowed, limit, max(0, limit - len(times)), max(1, math.ceil(wait_s)))

    def _recent(self, name: str, now: float) -> deque[float]:
        times = self._times.setdefault(name, deque())
        self._times.move_to_end(name)
        while len(self._times) > MAX_NAMES:
            self._times.popitem(last=False)
        while times and times[0] <= now - WINDOW_S:
            times.popleft()
        return times

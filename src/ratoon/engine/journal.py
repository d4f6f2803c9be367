"""The log lines of a request: its prefill progress and its end."""

from __future__ import annotations

import logging

from ratoon.engine.events import FinishReason
from ratoon.engine.request import Request

log = logging.getLogger("ratoon.engine")


class Journal:
    """Writes one ``prefill`` line per step crossed, at most one per forward pass, and one ``req``
    line at the end. Never any text of a prompt."""

    def __init__(self, *, has_progress: bool, progress_step: float) -> None:
        self._has_progress = has_progress
        self._step = progress_step
        self._reached: dict[str, int] = {}

    def prefill(self, request: Request) -> None:
        """Report progress in percent of the tokens that this request forwards."""
        if not self._has_progress or not request.n_to_forward or request.candidates:
            return
        done, total = min(request.n_forwarded, request.n_to_forward), request.n_to_forward
        percent = 100.0 * done / total
        reached = int(percent / self._step)
        if reached > self._reached.get(request.id, 0):
            self._reached[request.id] = reached
            log.info("prefill %5.1f%% (%d/%d tok seq=%d)", percent, done, total, request.seq_id)

    def finished(self, request: Request, reason: FinishReason | None) -> None:
        """Report the end; ``reason`` is ``None`` for a failed request."""
        self._reached.pop(request.id, None)
        note = {None: " failed", FinishReason.CANCELLED: " cancelled"}.get(reason, "")
        # one choice among tools asks several of these; the router tells of the choice
        level = logging.DEBUG if request.candidates else logging.INFO
        log.log(
            level,
            "%s %d+%d %s reuse=%d forwarded=%d %s seq=%d%s",
            request.label,
            len(request.prompt),
            len(request.output),
            request.layer,
            request.n_cached,
            request.n_forwarded,
            _spans(request),
            request.seq_id,
            note,
        )


def _spans(request: Request) -> str:
    """``1.0s (queue 0.0s prefill 0.1s decode 0.9s)``; a stage never reached took no time."""
    times = request.timings
    end = times.finished_s if times.finished_s is not None else times.arrived_s
    admitted = times.admitted_s if times.admitted_s is not None else end
    first = times.first_token_s if times.first_token_s is not None else end
    return (
        f"{end - times.arrived_s:.1f}s (queue {admitted - times.arrived_s:.1f}s "
        f"prefill {first - admitted:.1f}s decode {end - first:.1f}s)"
    )

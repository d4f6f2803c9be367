"""What to compute next. Pure: no clock, no thread, no model.

There is no prefill phase and no decode phase: a request has computed some of the tokens it knows
and must catch up with all of them. One that lacks only its latest reply token is decoding; it goes
first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ratoon.cache.lease import Full, Lease, Wait
from ratoon.cache.placement import CacheOp, SeqId
from ratoon.cache.prefix_cache import PrefixCache
from ratoon.engine.events import Event, Failed, Finished, FinishReason, Started
from ratoon.engine.model import Chunk
from ratoon.engine.request import Priority, Request, RequestState
from ratoon.errors import InternalError, RatoonError
from ratoon.reuse.replies import path_digest

Emission = tuple[Request, Event]

BACKGROUND_TURN = 16  # beside interactive requests, background prefills get rows in each 16th step
BACKGROUND_STEP_S = 0.06  # longest step of theirs, about
QUIET_S = 1.0  # after so long without interactive requests, it may be
QUIET_STEP_S = 0.12
MIN_BACKGROUND_ROWS = 16
# A query to the router is several requests, one after another; what is done between them, and for
# whoever asks at once again, must not wait for a step in the background.
LULL_S = 0.15
ADMISSION_TRIES = 64  # waiting requests looked at in one step
TIDY_S = 0.25


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """``token_budget`` is the work of one step in rows. Beside decoding requests a prefill gets at
    most ``prefill_chunk`` rows a step and all prefills together ``idle_chunk``; without any, they
    share ``idle_chunk``. Background prefills never have more than ``prefill_chunk`` rows in all,
    nor more than are computed in ``BACKGROUND_STEP_S`` (``QUIET_STEP_S`` where nobody has come
    lately), so that who comes need not wait long for the step under way."""

    n_ctx: int
    token_budget: int = 2048
    prefill_chunk: int = 96
    idle_chunk: int = 512
    max_running: int = 64
    max_queue: int = 256


@dataclass(eq=False, slots=True)
class Run:
    """A running request: its tokens (prompt and reply so far) and its hold on a sequence."""

    request: Request
    lease: Lease
    tokens: list[int]

    @property
    def n_computed(self) -> int:
        return self.lease.slot.n_tokens

    @property
    def n_missing(self) -> int:
        return len(self.tokens) - self.n_computed

    @property
    def is_decoding(self) -> bool:
        return self.n_missing == 1 and len(self.tokens) > len(self.request.prompt)


@dataclass(frozen=True, slots=True)
class Part:
    """The next ``n_rows`` tokens of a run."""

    run: Run
    n_rows: int

    @property
    def reaches_end(self) -> bool:
        return self.n_rows == self.run.n_missing

    @property
    def chunk(self) -> Chunk:
        start = self.run.n_computed
        tokens = self.run.tokens[start : start + self.n_rows]
        wants_logits = self.reaches_end and self.run.request.wants_logits
        return Chunk(self.run.lease.slot.seq_id, start, tokens, wants_logits)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: first the operations in order, then all parts as one batch."""

    ops: tuple[CacheOp, ...] = ()
    parts: tuple[Part, ...] = ()
    started: tuple[Emission, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.ops or self.parts or self.started)


class Scheduler:
    """Owns who waits and who runs; asks the cache for sequences."""

    def __init__(self, config: SchedulerConfig, cache: PrefixCache) -> None:
        self.config = config
        self.cache = cache
        self.waiting: list[Request] = []
        self.running: list[Run] = []
        self.n_preemptions = 0
        self._n_urgent = 0  # plans with work in the foreground
        self._planned_s = 0.0  # when the last plan was made
        self._urgent_s = float("-inf")  # when the last of those was made
        self._background_pace = float("inf")  # rows per second
        self._tidied_s = 0.0

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, request: Request) -> None:
        """Queue a request behind those of its class that arrived before it."""
        self.waiting.append(request)
        self.waiting.sort(key=lambda each: (each.priority, each.timings.arrived_s))

    # --- deciding ------------------------------------------------------------------------------

    def schedule(self, now: float) -> StepPlan:
        """The next step's plan."""
        self._planned_s = now
        started = self._admit(now)
        if now - self._tidied_s >= TIDY_S:
            self._tidied_s = now
            self.cache.tidy(now)
        parts = self._fit(now)
        return StepPlan(self.cache.take_ops(), parts, tuple(started))

    def _admit(self, now: float) -> list[Emission]:
        started: list[Emission] = []
        for request in self.waiting[:ADMISSION_TRIES]:
            if len(self.running) >= self.config.max_running:
                break
            tokens = request.prompt + request.output
            lease = self._acquire(request, tokens, now)
            if isinstance(lease, Full):
                break
            if isinstance(lease, Wait):
                self._hurry(lease.leader, request.priority)
                continue
            self.waiting.remove(request)
            self.running.append(Run(request, lease, tokens))
            request.state = RequestState.RUNNING
            request.seq_id = lease.slot.seq_id
            if request.timings.admitted_s is None:
                request.timings.admitted_s = now
                request.n_cached, request.layer = lease.n_cached, lease.layer
                request.n_to_forward = len(tokens) - lease.n_cached
                event = Started(len(request.prompt), lease.n_cached, lease.layer)
                started.append((request, event))
        return started

    def _acquire(self, request: Request, tokens: list[int], now: float) -> Lease | Wait | Full:
        """A sequence; where there is none, one that less urgent requests have is taken away."""
        while True:
            lease = self.cache.acquire(tokens, request.boundaries, now, request.n_lasting)
            if not (isinstance(lease, Full) and self.running):
                return lease
            last = self._least_urgent()
            if last.request.priority <= request.priority:
                return lease
            self._preempt(last, now)

    def _hurry(self, leader: SeqId | None, priority: Priority) -> None:
        """What an urgent request waits for is urgent."""
        for run in self.running:
            if run.lease.slot.seq_id == leader:
                run.request.priority = min(run.request.priority, priority)

    def _fit(self, now: float) -> tuple[Part, ...]:
        """Parts that the free cells can hold; preempts the youngest while they can't."""
        n_background = self._background_rows(now)
        while True:
            parts = self._divide(n_background)
            n_rows = sum(part.n_rows for part in parts)
            if not parts or self.cache.make_cells(n_rows, now):
                return parts
            if len(self.running) == 1:
                return self._shrink(parts[0])
            self._preempt(self._least_urgent(), now)

    def _least_urgent(self) -> Run:
        """The youngest, in the background if any is."""
        return max(reversed(self.running), key=lambda run: run.request.priority)

    def _shrink(self, part: Part) -> tuple[Part, ...]:
        n = min(part.n_rows, self.cache.n_free_cells)
        return (Part(part.run, n),) if n else ()

    def _background_rows(self, now: float) -> int:
        """How many rows background prefills may have in this step."""
        if not self._is_background_due(now):
            return 0
        is_quiet = now - self._urgent_s >= QUIET_S
        n_in_time = self._background_pace * (QUIET_STEP_S if is_quiet else BACKGROUND_STEP_S)
        return int(min(self.config.prefill_chunk, max(MIN_BACKGROUND_ROWS, n_in_time)))

    def _is_background_due(self, now: float) -> bool:
        """Whether background prefills may have rows in this step."""
        if any(
            run.is_decoding or run.request.priority is Priority.INTERACTIVE for run in self.running
        ):
            self._n_urgent += 1
            self._urgent_s = now
            return not self._n_urgent % BACKGROUND_TURN
        return now - self._urgent_s >= LULL_S

    def _divide(self, n_background: int) -> tuple[Part, ...]:
        decoding = [Part(run, 1) for run in self.running if run.is_decoding]
        decoding = decoding[: self.config.token_budget]
        prefilling = [run for run in self.running if not run.is_decoding]
        urgent = [run for run in prefilling if run.request.priority is Priority.INTERACTIVE]
        background = [run for run in prefilling if run.request.priority is Priority.BACKGROUND]
        budget = min(self.config.token_budget - len(decoding), self.config.idle_chunk)
        least = min(n_background, budget) if background else 0
        cap = self.config.prefill_chunk if decoding else budget
        return (
            *decoding,
            *self._share(urgent, budget - least, cap),
            *self._share(background, least, cap),
        )

    def _share(self, runs: Sequence[Run], budget: int, cap: int) -> Iterable[Part]:
        """Split half of ``budget`` rows evenly, so that none starves, and give the rest to those
        that need the fewest: were all to go on evenly, all would be done when the last is."""
        least = max(1, budget // (2 * len(runs))) if runs else 0
        for i, run in enumerate(sorted(runs, key=lambda each: each.n_missing)):
            kept_for_others = least * (len(runs) - 1 - i)
            most = min(budget, max(1, budget - kept_for_others))
            n = min(run.n_missing, cap, most, self._to_next_cut(run))
            if n > 0:
                budget -= n
                yield Part(run, n)

    def _to_next_cut(self, run: Run) -> int:
        ahead = [cut - run.n_computed for cut in run.lease.cuts if cut > run.n_computed]
        return min(ahead, default=run.n_missing)

    def _preempt(self, run: Run, now: float) -> None:
        self.running.remove(run)
        self.cache.preempt(run.lease, run.tokens, now)
        run.request.state = RequestState.WAITING
        self.add(run.request)
        self.n_preemptions += 1

    # --- learning what happened ----------------------------------------------------------------

    def update(
        self, plan: StepPlan, sampled: Sequence[int | None], ends: Sequence[bool], now: float
    ) -> list[Emission]:
        """Account for an executed plan. ``sampled`` has a token for each part that reached its
        run's end, unless no reply was asked for or none could be had; ``ends`` says which of them
        end the turn."""
        self._learn_pace(plan, now - self._planned_s)
        self.cache.advance([(part.run.lease, part.n_rows) for part in plan.parts])
        finished: list[Emission] = []
        for part, token, is_end in zip(plan.parts, sampled, ends, strict=True):
            run = part.run
            run.request.n_forwarded += _prompt_rows(part)
            self.cache.checkpoint(run.lease, run.tokens, now)
            if token is None:
                # no reply was asked for, only the prompt's state
                if not run.request.max_tokens and not run.n_missing:
                    finished.append(self._finish(run, FinishReason.LENGTH, now))
                continue
            if run.request.timings.first_token_s is None:
                run.request.timings.first_token_s = now
            if not is_end:
                run.tokens.append(token)
                run.request.output.append(token)
            reason = self._end_reason(run, is_end)
            if reason is not None:
                finished.append(self._finish(run, reason, now))
        return finished

    def _learn_pace(self, plan: StepPlan, seconds: float) -> None:
        """How fast rows are computed in the background."""
        if any(part.run.request.priority is not Priority.BACKGROUND for part in plan.parts):
            return
        n_rows = sum(part.n_rows for part in plan.parts)
        if n_rows >= MIN_BACKGROUND_ROWS and seconds > 0:
            self._background_pace = n_rows / seconds

    def _end_reason(self, run: Run, is_end: bool) -> FinishReason | None:
        if is_end:
            return FinishReason.STOP
        if len(run.request.output) >= run.request.max_tokens:
            return FinishReason.LENGTH
        if len(run.tokens) >= self.config.n_ctx:
            return FinishReason.CONTEXT
        return None

    def _finish(self, run: Run, reason: FinishReason, now: float) -> Emission:
        self.running.remove(run)
        self.cache.release(run.lease, run.tokens, now, path_digest(run.tokens))
        return self._end(run.request, Finished(reason, len(run.request.output)), now)

    def _end(self, request: Request, event: Event, now: float) -> Emission:
        request.state = RequestState.FINISHED
        request.timings.finished_s = now
        return request, event

    def cancel(self, request_id: str, now: float) -> list[Emission]:
        """End a request early; what was computed stays in the tree. Unknown ids are ignored."""
        for run in self.running:
            if run.request.id == request_id:
                return [self._finish(run, FinishReason.CANCELLED, now)]
        for request in self.waiting:
            if request.id == request_id:
                self.waiting.remove(request)
                event = Finished(FinishReason.CANCELLED, len(request.output))
                return [self._end(request, event, now)]
        return []

    def requeue(self, seq_ids: set[SeqId], now: float) -> None:
        """The states of these sequences are unknown: forget them and start their requests anew."""
        for run in [each for each in self.running if each.lease.slot.seq_id in seq_ids]:
            self._begin_anew(run)
        self.cache.discard_parked(seq_ids)

    def no_room(self, plan: StepPlan, now: float) -> list[Emission]:
        """The model found no cells for a plan: make room for a smaller one, or fail the last."""
        if self.cache.offload_all(now):
            return []
        if len(self.running) > 1:
            self._preempt(self._least_urgent(), now)
            return []
        error = InternalError("the KV cache is full and nothing is left to evict")
        return self.fail([part.run for part in plan.parts], error, now)

    def retry(self, runs: Iterable[Run], error: RatoonError, now: float) -> list[Emission]:
        """These runs were computed together and it broke: one of their states may be bad. Forget
        all of them and where they came from; a request that broke before fails."""
        emissions: list[Emission] = []
        for run in list(runs):
            for snapshot in run.lease.origins:
                self.cache.forget(snapshot)
            if run.request.n_retries:
                emissions += self.fail([run], error, now)
                continue
            run.request.n_retries += 1
            self._begin_anew(run)
        return emissions

    def _begin_anew(self, run: Run) -> None:
        self.running.remove(run)
        self.cache.discard(run.lease)
        run.request.state = RequestState.WAITING
        self.add(run.request)

    def stop(self, error: RatoonError, now: float) -> list[Emission]:
        """Nothing more is served. What was computed stays."""
        emissions: list[Emission] = []
        for run in list(self.running):
            self.running.remove(run)
            self.cache.release(run.lease, run.tokens, now)
            emissions.append(self._end(run.request, Failed(error), now))
        waiting, self.waiting = self.waiting, []
        return emissions + [self._end(request, Failed(error), now) for request in waiting]

    def fail(self, runs: Iterable[Run], error: RatoonError, now: float) -> list[Emission]:
        """These runs broke: drop their states and tell their clients."""
        emissions: list[Emission] = []
        for run in list(runs):
            self.running.remove(run)
            self.cache.discard(run.lease)
            emissions.append(self._end(run.request, Failed(error), now))
        return emissions


def _prompt_rows(part: Part) -> int:
    """How many of the rows just computed belong to the prompt."""
    end = part.run.n_computed
    return max(0, min(end, len(part.run.request.prompt)) - (end - part.n_rows))

"""The engine thread: the only place where plans are executed and the model is touched."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ratoon.cache.config import CacheConfig
from ratoon.cache.placement import CacheOp, Copy, Drop, Restore, Rewind, Save, SeqId, Snapshot
from ratoon.cache.prefix_cache import PrefixCache
from ratoon.disk.store import DiskStore
from ratoon.engine.events import Failed, Finished, Token
from ratoon.engine.journal import Journal
from ratoon.engine.keeper import Keeper
from ratoon.engine.model import BadState, Logits, Model, NoRoom
from ratoon.engine.request import Request
from ratoon.engine.sampler import Sampler
from ratoon.engine.scheduler import Emission, Run, Scheduler, SchedulerConfig, StepPlan
from ratoon.engine.scores import score
from ratoon.errors import ConfigError, InternalError, ModelError, Overloaded, PromptTooLong

log = logging.getLogger("ratoon.engine")

# For tests: the tokens that a request's reply begins with, whatever the model would say. Called
# once for each request, on the thread that submits it; what it raises, ``submit`` raises. They are
# chosen in place of sampled ones and nothing else is different: the prompt is computed and cached,
# and so are they. An end-of-turn token ends the reply; without one the model goes on by itself.
ForcedTokens = Callable[[Request], Sequence[int]]

PAUSE_S = 0.01  # between two looks for what is read; a look at a long prompt takes milliseconds
COPY_TAIL = 64  # where a fork copies the whole state, losing this much is cheaper


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The engine's share of the settings; byte counts are absolute here."""

    model_name: str = ""  # empty: the model's own
    host_bytes: int = 1 << 30
    prefill_chunk: int = 96
    max_running: int = 64
    max_queue: int = 256
    has_progress: bool = True
    progress_step: float = 10.0  # percent
    park_s: float = 2.0
    flush_s: float = 8.0  # at the end, states are written to disk for so long

    def __post_init__(self) -> None:
        if self.prefill_chunk < 1:
            raise ConfigError(f"prefill_chunk ({self.prefill_chunk}) must be at least 1")
        if self.progress_step <= 0:
            raise ConfigError(f"progress_step ({self.progress_step}) must be above 0")


class Engine:
    """Continues prompts. ``submit``, ``cancel``, ``match_length`` and ``inspect`` are thread-safe;
    the rest of the class runs on one thread that owns the model."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        *,
        cache: PrefixCache | None = None,
        store: DiskStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        forced_tokens: ForcedTokens | None = None,
    ) -> None:
        """``store`` keeps states on disk; the engine closes it."""
        self.model = model
        self.model_name = config.model_name or model.name
        self.n_ctx = model.shape.n_ctx
        self.bytes_per_token = model.shape.bytes_per_token
        has_disk = store is not None
        self.cache = cache or PrefixCache(cache_config(model, config, has_disk=has_disk))
        self.scheduler = Scheduler(_scheduler_config(model, config), self.cache)
        self.forced_tokens = forced_tokens
        # hears, on the engine thread, of replies whose end no state reaches any more: the digests
        # of their prompt and tokens
        self.on_lost: Callable[[Sequence[bytes]], None] | None = None
        self._clock = clock
        self._journal = Journal(
            has_progress=config.has_progress, progress_step=config.progress_step
        )
        self._samplers: dict[str, Sampler] = {}
        self._lock = threading.Lock()  # guards scheduler and cache; never held while computing
        self._wake = threading.Condition()  # guards the inbox
        self._inbox: list[Request] = []
        self._cancelled: list[str] = []
        self._is_stopping = False
        self._flush_s = config.flush_s
        self._keeper: Keeper | None = None
        if store is not None:
            self._keeper = Keeper(store, self.cache, model, self._lock, clock)
            self._keeper.open()
        self._thread: threading.Thread | None = None

    # --- from any thread -----------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the step under way, fail what is unfinished, write what is worth keeping to disk,
        close the model."""
        with self._wake:
            was_stopping, self._is_stopping = self._is_stopping, True
            self._wake.notify()
        if self._thread is None and not was_stopping:
            self._shut_down()  # it was stepped by hand
        elif self._thread is not None:
            self._thread.join(timeout_s + self._flush_s)
            if self._thread.is_alive():
                log.warning("the engine did not stop within %.0f s", timeout_s)
                return
            self._thread = None
        self.model.close()

    def submit(self, request: Request) -> None:
        """Queue a request. Raises PromptTooLong or Overloaded; otherwise events follow."""
        if len(request.prompt) >= self.n_ctx:
            raise PromptTooLong(len(request.prompt), self.n_ctx - 1)
        if not request.prompt:
            raise InternalError("an empty prompt can't be continued")
        sampler = self._sampler(request)
        with self._wake:
            if self._is_stopping:
                raise _shutting_down()
            if len(self._inbox) + len(self.scheduler.waiting) >= self.scheduler.config.max_queue:
                raise Overloaded("Overloaded: too many requests are waiting")
            request.timings.arrived_s = self._clock()
            self._samplers[request.id] = sampler
            self._inbox.append(request)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """End a request within one step; ``Finished(CANCELLED)`` follows unless it ended before."""
        with self._wake:
            self._cancelled.append(request_id)
            self._wake.notify()

    def match_length(self, tokens: list[int]) -> int:
        """How many tokens of a prompt some tier holds or is computing."""
        with self._lock:
            return self.cache.match_length(tokens)

    def evict(self) -> int:
        """Give up every state that no running request needs, but for those on disk; returns how
        many. The device's are gone with the next step."""
        with self._lock:
            return self.cache.evict()

    def inspect(self) -> dict[str, object]:
        """A JSON-ready view of what runs, waits and is kept."""
        with self._lock:
            running = [_view(run.request, run.n_computed) for run in self.scheduler.running]
            waiting = [_view(request, 0) for request in self.scheduler.waiting]
            return {
                "model": self.model_name,
                "n_ctx": self.n_ctx,
                "running": running,
                "waiting": waiting,
                "preemptions": self.scheduler.n_preemptions,
                "cache": self.cache.stats() | (self._keeper.store.stats() if self._keeper else {}),
            }

    # --- on the engine thread ------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                self.step()
            except Exception as error:  # the thread's boundary: the server outlives a bad step
                log.exception("a step failed")
                self._recover(InternalError(f"internal error: {type(error).__name__}"))
        self._shut_down()

    def _shut_down(self) -> None:
        """End every request, and keep what is worth it."""
        self._drain_inbox()
        with self._lock:
            emissions = self.scheduler.stop(_shutting_down(), self._clock())
        self._emit(emissions)
        if self._keeper is not None:
            self._keeper.close(self._flush_s)

    def _recover(self, error: InternalError) -> None:
        """A step broke half-way, so the books and the device may differ: start both afresh."""
        self._fail_running(error)
        with self._lock:
            self.cache.reset()
        for seq_id in range(self.model.shape.n_seq):
            self.model.drop(SeqId(seq_id), 0)

    def _wait_for_work(self) -> bool:
        with self._wake:
            if not (self._inbox or self._cancelled or self._is_stopping) and self.scheduler.is_idle:
                self._wake.wait(self._keeper.pause_s if self._keeper else None)
            return not self._is_stopping

    def step(self) -> None:
        """One scheduler iteration."""
        self._drain_inbox()
        if self._keeper is not None:
            self._keeper.collect()
        with self._lock:
            plan = self.scheduler.schedule(self._clock())
            lost = self.cache.take_lost()
        if lost and self.on_lost is not None:
            self.on_lost(lost)
        self._emit(plan.started)
        if self._keeper is not None:
            self._keeper.run_errands()
        if plan.is_empty:
            self._pause()
        elif not self._execute(plan.ops):
            self._forward(plan)
        if self._keeper is not None:
            self._keeper.keep(is_idle=self.scheduler.is_idle)

    def _pause(self) -> None:
        """Only requests that wait for a file are there, so there is nothing to do this instant."""
        with self._wake:
            if not (self._inbox or self._cancelled or self._is_stopping):
                self._wake.wait(PAUSE_S)

    def _drain_inbox(self) -> None:
        with self._wake:
            arrived, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, []
        emissions: list[Emission] = []
        with self._lock:
            for request in arrived:
                self.scheduler.add(request)
            for request_id in cancelled:
                emissions += self.scheduler.cancel(request_id, self._clock())
        self._emit(emissions)

    def _sampler(self, request: Request) -> Sampler:
        forced = self.forced_tokens(request) if self.forced_tokens else ()
        return Sampler(request.sampling, request.guide, forced)

    def _execute(self, ops: Sequence[CacheOp]) -> bool:
        """Run operations in order. A refused snapshot, and what was built on it, is forgotten and
        its requests start anew; then the plan is void and this returns True."""
        lost: set[SeqId] = set()
        for op in ops:
            try:
                self._execute_one(op, lost)
            except BadState as error:
                assert isinstance(op, Restore | Rewind)
                log.warning("%s; it is recomputed", error)
                lost.add(op.seq_id)
                with self._lock:
                    self.cache.forget(op.snapshot)
        with self._lock:
            self.cache.disk.release()
            if lost:
                self.scheduler.requeue(lost, self._clock())
        return bool(lost)

    def _execute_one(self, op: CacheOp, lost: set[SeqId]) -> None:
        match op:
            case Copy():
                self.model.copy(op.src, op.dst, op.n_tokens)
                if op.src in lost:
                    lost.add(op.dst)
            case Drop():
                self.model.drop(op.seq_id, op.n_keep)
                if not op.n_keep:
                    lost.discard(op.seq_id)
            case Save():
                self._save(op, is_lost=op.seq_id in lost)
            case Restore():
                self.model.restore(op.seq_id, _filled(op.snapshot))
                if op.n_tokens < op.snapshot.n_tokens:
                    self.model.drop(op.seq_id, op.n_tokens)
            case Rewind():
                if op.seq_id not in lost:
                    self.model.rewind(op.seq_id, _filled(op.snapshot), op.snapshot.n_tokens)

    def _save(self, op: Save, *, is_lost: bool) -> None:
        if is_lost:  # left unfilled, so what this plan restores from it is lost, too
            with self._lock:
                self.cache.forget(op.snapshot)
            return
        save = self.model.save_part if op.snapshot.is_part else self.model.save
        data = save(op.seq_id)
        with self._lock:
            self.cache.fill(op.snapshot, data, self._clock())

    def _forward(self, plan: StepPlan) -> None:
        try:
            logits = self.model.forward([part.chunk for part in plan.parts]) if plan.parts else []
        except NoRoom as error:
            log.warning("%s", error)
            with self._lock:
                emissions = self.scheduler.no_room(plan, self._clock())
            self._emit(emissions)
            return
        except ModelError as error:
            log.error("%s", error)
            self._retry_plan(plan, error)
            return
        failed: list[tuple[Run, ModelError]] = []
        sampled = [
            self._sample(part.run, row, failed)
            for part, row in zip(plan.parts, logits, strict=True)
        ]
        self._publish(plan, sampled)
        for run, sample_error in failed:
            with self._lock:
                emissions = self.scheduler.fail([run], sample_error, self._clock())
            self._emit(emissions)

    def _sample(
        self, run: Run, logits: Logits | None, failed: list[tuple[Run, ModelError]]
    ) -> int | None:
        """The next token. A request whose guide lets none come is added to ``failed``; one that
        asks for scores gets them and no token."""
        if logits is None:
            return None
        if run.request.candidates:
            self._emit([(run.request, score(logits, run.request.candidates))])
            return None
        try:
            return self._samplers[run.request.id].sample(logits)
        except ModelError as error:
            log.error("%s: %s", run.request.id, error)
            failed.append((run, error))
            return None

    def _publish(self, plan: StepPlan, sampled: list[int | None]) -> None:
        ends = [token is not None and self.model.is_end(token) for token in sampled]
        with self._lock:
            finished = self.scheduler.update(plan, sampled, ends, self._clock())
        for part in plan.parts:
            self._journal.prefill(part.run.request)
        tokens: list[Emission] = []
        for part, token, is_end in zip(plan.parts, sampled, ends, strict=True):
            if token is not None and not is_end:
                tokens.append((part.run.request, Token(token, self.model.vocab.piece(token))))
        self._emit(tokens)
        self._emit(finished)

    def _retry_plan(self, plan: StepPlan, error: ModelError) -> None:
        with self._lock:
            runs = [part.run for part in plan.parts]
            emissions = self.scheduler.retry(runs, error, self._clock())
        self._emit(emissions)

    def _fail_running(self, error: InternalError | Overloaded) -> None:
        with self._lock:
            emissions = self.scheduler.fail(self.scheduler.running, error, self._clock())
        self._emit(emissions)

    def _emit(self, emissions: Sequence[Emission]) -> None:
        for request, event in emissions:
            if isinstance(event, Finished | Failed):
                self._samplers.pop(request.id, None)
                self._journal.finished(
                    request, event.reason if isinstance(event, Finished) else None
                )
            try:
                request.emit(event)
            except Exception:  # the listener's boundary: its loop may be gone
                log.debug("an event found no listener", exc_info=True)


def _filled(snapshot: Snapshot) -> memoryview:
    if snapshot.data is None:
        raise BadState("a snapshot was never filled")
    return snapshot.data


def _shutting_down() -> Overloaded:
    return Overloaded("Overloaded: the server is shutting down")


def cache_config(model: Model, config: EngineConfig, *, has_disk: bool = False) -> CacheConfig:
    """The cache's limits, from the model's shape and the settings."""
    shape = model.shape
    return CacheConfig(
        n_ctx=shape.n_ctx,
        n_cells=shape.n_cells,
        n_seq=shape.n_seq,
        n_ubatch=shape.n_ubatch,
        memory=shape.memory,
        is_unified=shape.is_unified,
        bytes_per_token=shape.bytes_per_token,
        host_bytes=config.host_bytes,
        state_bytes=shape.state_bytes,
        window=shape.window,
        save_step=shape.save_step,
        has_disk=has_disk,
        max_tail=0 if shape.is_unified else COPY_TAIL,
        park_s=config.park_s,
    )


def _scheduler_config(model: Model, config: EngineConfig) -> SchedulerConfig:
    return SchedulerConfig(
        n_ctx=model.shape.n_ctx,
        token_budget=model.shape.n_batch,
        prefill_chunk=config.prefill_chunk,
        idle_chunk=model.shape.n_ubatch,
        max_running=min(config.max_running, model.shape.n_seq),
        max_queue=config.max_queue,
    )


def _view(request: Request, n_computed: int) -> dict[str, object]:
    return {
        "id": request.id,
        "state": request.state.value,
        "n_prompt": len(request.prompt),
        "n_cached": request.n_cached,
        "n_computed": n_computed,
        "n_output": len(request.output),
        "layer": request.layer,
        "seq_id": request.seq_id,
    }

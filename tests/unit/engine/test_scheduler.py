"""Plans as values: what is computed next, and in which portions."""

from __future__ import annotations

from itertools import count

from ratoon.cache.config import CacheConfig
from ratoon.cache.placement import MemoryKind
from ratoon.cache.prefix_cache import PrefixCache
from ratoon.engine.events import Event, Finished, FinishReason, Started
from ratoon.engine.request import Priority, Request
from ratoon.engine.scheduler import (
    BACKGROUND_STEP_S,
    BACKGROUND_TURN,
    LULL_S,
    MIN_BACKGROUND_ROWS,
    QUIET_STEP_S,
    Scheduler,
    SchedulerConfig,
    StepPlan,
)

_ids = count()


def scheduler(
    n_cells: int = 4000, memory: MemoryKind = MemoryKind.FULL, **limits: int
) -> Scheduler:
    cache = PrefixCache(
        CacheConfig(
            n_ctx=2000,
            n_cells=n_cells,
            n_seq=16,
            n_ubatch=512,
            memory=memory,
            is_unified=True,
            bytes_per_token=1,
            host_bytes=10**6,
        )
    )
    config = {"n_ctx": 2000, "token_budget": 600, "prefill_chunk": 100, "idle_chunk": 400}
    return Scheduler(SchedulerConfig(**(config | limits)), cache)


def request(n: int, base: int = 0, max_tokens: int = 50, **more: object) -> Request:
    prompt = [base * 10_000 + i for i in range(n)]
    return Request(str(next(_ids)), prompt, max_tokens, emit=lambda _: None, **more)  # type: ignore[arg-type]


def rows(plan: StepPlan) -> list[int]:
    return [part.n_rows for part in plan.parts]


def run(sched: Scheduler, plan: StepPlan, token: int = 7, is_end: bool = False) -> list[Event]:
    sampled = [token if part.reaches_end else None for part in plan.parts]
    ends = [is_end and token is not None for token in sampled]
    return [event for _, event in sched.update(plan, sampled, ends, 0.0)]


def start(sched: Scheduler, *requests: Request) -> None:
    for each in requests:
        sched.add(each)


def decoding(sched: Scheduler, n: int = 10, base: int = 50) -> Request:
    one = request(n, base, max_tokens=1000)
    start(sched, one)
    run(sched, sched.schedule(0.0))
    return one


def test_an_idle_engine_takes_full_chunks() -> None:
    sched = scheduler()
    start(sched, request(1000))
    assert rows(sched.schedule(0.0)) == [400]


def test_prefills_share_a_step_and_the_shortest_gets_most() -> None:
    sched = scheduler()
    start(sched, request(1000, 1), request(30, 2), request(900, 3))
    plan = sched.schedule(0.0)
    shares = {len(part.run.request.prompt): part.n_rows for part in plan.parts}
    assert shares == {30: 30, 900: 304, 1000: 66}


def test_no_prefill_starves_however_many_are_shorter() -> None:
    sched = scheduler(n_cells=10_000)
    start(sched, *(request(400, base) for base in range(10)), request(1900, 11))
    for _ in range(5):
        plan = sched.schedule(0.0)
        assert sum(rows(plan)) == 400
        shares = {len(part.run.request.prompt): part.n_rows for part in plan.parts}
        assert shares[1900] >= 400 // (2 * 11)
        run(sched, plan, is_end=True)


def test_a_step_of_fewer_rows_than_prefills_goes_to_the_first() -> None:
    sched = scheduler(idle_chunk=3)
    start(sched, *(request(400, base) for base in range(5)))
    assert rows(sched.schedule(0.0)) == [1, 1, 1]


def test_decoding_goes_first_and_caps_prefills() -> None:
    sched = scheduler()
    one = decoding(sched)
    start(sched, request(1000, 1))
    plan = sched.schedule(0.0)
    assert rows(plan) == [1, 100]
    assert plan.parts[0].run.request is one


def test_a_step_never_exceeds_its_budget() -> None:
    sched = scheduler(token_budget=120, idle_chunk=120)
    decoding(sched)
    start(sched, *[request(500, base) for base in range(1, 9)])
    assert sum(rows(sched.schedule(0.0))) <= 120


def test_the_first_event_tells_what_was_cached() -> None:
    sched = scheduler()
    first = request(300)
    start(sched, first)
    run(sched, sched.schedule(0.0), is_end=True)
    start(sched, request(350))
    ((_, event),) = sched.schedule(0.0).started
    assert event == Started(350, 300, "device")


def test_interactive_requests_overtake_background_ones() -> None:
    sched = scheduler(max_running=1)
    decoding(sched)
    late = request(10, 2, priority=Priority.INTERACTIVE)
    start(sched, request(10, 1, priority=Priority.BACKGROUND), late)
    assert sched.waiting[0] is late


def test_the_background_leaves_rows_to_others_but_is_not_forgotten() -> None:
    sched = scheduler()
    back = request(1900, 2, priority=Priority.BACKGROUND)
    start(sched, back)
    alone = sched.schedule(0.0)
    assert rows(alone) == [100]  # a short step, so that who comes next need not wait long
    run(sched, alone)
    decoding(sched)
    shares: list[int] = []
    for _ in range(2 * BACKGROUND_TURN):
        plan = sched.schedule(0.0)
        shares.append(sum(part.n_rows for part in plan.parts if part.run.request is back))
        run(sched, plan)
    assert sorted(shares) == [0] * (2 * BACKGROUND_TURN - 2) + [100, 100]


def test_the_background_is_still_for_a_moment_after_others() -> None:
    sched = scheduler()
    start(sched, request(1900, 2, priority=Priority.BACKGROUND))
    run(sched, sched.schedule(0.0))
    start(sched, request(30, 3, max_tokens=0))
    run(sched, sched.schedule(1.0))
    assert [each.request.priority for each in sched.running] == [Priority.BACKGROUND]
    assert sched.schedule(1.0 + 0.9 * LULL_S).is_empty
    assert rows(sched.schedule(1.0 + 1.1 * LULL_S)) == [100]


def test_a_step_in_the_background_is_never_long() -> None:
    sched = scheduler()
    start(sched, request(1900, 2, priority=Priority.BACKGROUND))
    pace = 512  # rows per second

    def steps(now: float) -> tuple[list[int], float]:
        seen = []
        for _ in range(4):
            plan = sched.schedule(now)
            (n_rows,) = rows(plan)
            seen.append(n_rows)
            now += n_rows / pace
            sched.update(plan, [None], [False], now)
        return seen, now

    seen, now = steps(0.0)
    assert seen == [100, *[int(pace * QUIET_STEP_S)] * 3]
    start(sched, request(30, 3, max_tokens=0))
    run(sched, sched.schedule(now))
    seen, now = steps(now + 1.1 * LULL_S)
    assert seen == [int(pace * BACKGROUND_STEP_S)] * 4
    plan = sched.schedule(now)
    sched.update(plan, [None], [False], now + 1000)
    assert rows(sched.schedule(now + 1000)) == [MIN_BACKGROUND_ROWS]


def test_the_background_is_preempted_first() -> None:
    sched = scheduler(n_cells=1000)
    back = request(900, 2, priority=Priority.BACKGROUND)
    start(sched, back)
    for _ in range(6):
        run(sched, sched.schedule(0.0))
    start(sched, request(800, 3))
    for _ in range(8):
        run(sched, sched.schedule(0.0))
    assert sched.n_preemptions == 1
    assert back in sched.waiting


def test_what_an_urgent_request_waits_for_is_urgent() -> None:
    sched = scheduler()
    back = request(1900, 2, priority=Priority.BACKGROUND)
    start(sched, back)
    run(sched, sched.schedule(0.0))
    start(sched, request(1950, 2))
    sched.schedule(0.0)
    assert rows(sched.schedule(0.0)) == [400]
    assert back.priority is Priority.INTERACTIVE


def test_a_request_for_scores_gets_logits_and_no_reply() -> None:
    sched = scheduler()
    start(sched, request(30, 1, max_tokens=0, candidates=((1,), (2, 3))))
    plan = sched.schedule(0.0)
    assert plan.parts[0].chunk.wants_logits
    (last,) = sched.update(plan, [None], [False], 0.0)
    assert last[1] == Finished(FinishReason.LENGTH, 0)


def test_siblings_are_computed_once() -> None:
    sched = scheduler()
    prompts = [[*range(500), 900 + i] for i in range(3)]
    siblings = [Request(str(next(_ids)), p, 1, emit=lambda _: None) for p in prompts]
    start(sched, *siblings)
    total = 0
    while not sched.is_idle:
        plan = sched.schedule(0.0)
        total += sum(rows(plan))
        run(sched, plan)
    assert total == 503
    assert [each.n_forwarded for each in siblings] == [501, 1, 1]


def test_recurrent_siblings_are_computed_once_too() -> None:
    sched = scheduler(memory=MemoryKind.RECURRENT)
    prompts = [[*range(500), 900 + i] for i in range(3)]
    start(sched, *[Request(str(next(_ids)), p, 1, emit=lambda _: None) for p in prompts])
    total = 0
    while not sched.is_idle:
        plan = sched.schedule(0.0)
        total += sum(rows(plan))
        run(sched, plan)
    assert total == 503


def test_the_youngest_is_preempted_when_cells_run_out_and_comes_back() -> None:
    sched = scheduler(n_cells=2000)
    old, young = request(900, 1, max_tokens=500), request(900, 2, max_tokens=500)
    start(sched, old, young)
    n_steps = 0
    while not sched.is_idle:
        run(sched, sched.schedule(float(n_steps)))
        sched.cache.check()
        n_steps += 1
        assert n_steps < 5000
    assert sched.n_preemptions >= 1
    assert len(old.output) == len(young.output) == 500
    assert young.n_forwarded >= 900


def test_prompts_that_do_not_fit_together_wait_instead_of_being_preempted() -> None:
    sched = scheduler(n_cells=2000)
    start(sched, *[request(900, base, max_tokens=5) for base in range(1, 9)])
    n_steps = 0
    while not sched.is_idle:
        run(sched, sched.schedule(float(n_steps)))
        n_steps += 1
        assert n_steps < 500
    assert sched.n_preemptions == 0


def test_a_reply_ends_where_it_should() -> None:
    sched = scheduler()
    start(sched, request(10, max_tokens=2))
    assert run(sched, sched.schedule(0.0)) == []
    assert run(sched, sched.schedule(0.0)) == [Finished(FinishReason.LENGTH, 2)]
    start(sched, request(10, 1))
    assert run(sched, sched.schedule(0.0), is_end=True) == [Finished(FinishReason.STOP, 0)]
    start(sched, request(1999, 2))
    events: list[Event] = []
    while not events:
        events = run(sched, sched.schedule(0.0))
    assert events == [Finished(FinishReason.CONTEXT, 1)]


def test_what_a_cancelled_request_computed_is_kept() -> None:
    sched = scheduler()
    one = request(1000)
    start(sched, one)
    run(sched, sched.schedule(0.0))
    ((_, event),) = sched.cancel(one.id, 0.0)
    assert event == Finished(FinishReason.CANCELLED, 0)
    start(sched, request(1000))
    assert sched.schedule(0.0).started[0][1] == Started(1000, 400, "device")


def test_cancelling_the_waiting_and_the_unknown() -> None:
    sched = scheduler(max_running=1)
    decoding(sched)
    waiting = request(10, 1)
    start(sched, waiting)
    assert sched.cancel(waiting.id, 0.0)
    assert not sched.waiting
    assert sched.cancel("nobody", 0.0) == []


def test_a_lost_sequence_starts_anew() -> None:
    sched = scheduler()
    one = request(300)
    start(sched, one)
    plan = sched.schedule(0.0)
    sched.requeue({plan.parts[0].run.lease.slot.seq_id}, 0.0)
    assert sched.waiting == [one]
    sched.cache.check()
    assert rows(sched.schedule(0.0)) == [300]


def test_a_prompt_without_a_reply_is_computed_and_kept() -> None:
    sched = scheduler()
    start(sched, warm := request(500, max_tokens=0))
    plan = sched.schedule(0.0)
    assert run(sched, plan) == []
    plan = sched.schedule(0.0)
    assert [part.chunk.wants_logits for part in plan.parts] == [False]
    assert [event for _, event in sched.update(plan, [None], [False], 0.0)] == [
        Finished(FinishReason.LENGTH, 0)
    ]
    assert sched.is_idle
    start(sched, request(501))
    ((_, event),) = sched.schedule(0.0).started
    assert event == Started(501, 500, "device")
    assert warm.output == []
    sched.cache.check()

"""The engine thread with a model that only repeats: lives of requests, from other threads."""

from __future__ import annotations

import itertools
import logging
import queue
import re
import threading
from collections.abc import Iterator, Sequence

import pytest

from ratoon.cache.placement import Drop, Restore, Save, SeqId, Snapshot
from ratoon.engine.dummy import DummyModel
from ratoon.engine.engine import Engine, EngineConfig, ForcedTokens
from ratoon.engine.events import Event, Failed, Finished, FinishReason, Started, Token
from ratoon.engine.model import BadState, Chunk, Logits, NoRoom
from ratoon.engine.request import Request
from ratoon.errors import ModelError, Overloaded, PromptTooLong
from ratoon.reuse.replies import path_digest


class Client:
    """Submits prompts and collects their events."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ids = itertools.count(1)

    def ask(self, text: str, max_tokens: int = 1000) -> queue.Queue[Event]:
        events: queue.Queue[Event] = queue.Queue()
        prompt = chatml(self.engine.model, text)
        self.engine.submit(Request(f"r{next(self._ids)}", prompt, max_tokens, emit=events.put))
        return events


def chatml(model: object, text: str) -> list[int]:
    tokenize = model.vocab.tokenize  # type: ignore[attr-defined]
    return [256, *tokenize("user\n" + text), 257, 10, 256, *tokenize("assistant\n")]


def collect(events: queue.Queue[Event]) -> tuple[str, Event]:
    pieces = b""
    while True:
        event = events.get(timeout=60)
        if isinstance(event, Token):
            pieces += event.piece
        elif not isinstance(event, Started):
            return pieces.decode(), event


@pytest.fixture
def model() -> DummyModel:
    return DummyModel(n_ctx=4096, n_batch=64)


@pytest.fixture
def engine(model: DummyModel) -> Iterator[Engine]:
    engine = Engine(model, EngineConfig(max_queue=8))
    engine.start()
    yield engine
    engine.stop()


def test_a_prompt_is_answered(engine: Engine) -> None:
    text, end = collect(Client(engine).ask("héllo wörld"))
    assert text == "héllo wörld"
    assert end == Finished(FinishReason.STOP, len("héllo wörld".encode()))


def test_many_threads_at_once(engine: Engine) -> None:
    client, answers = Client(engine), dict[int, str]()

    def work(i: int) -> None:
        answers[i] = collect(client.ask(f"message number {i} " * 5))[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {i: f"message number {i} " * 5 for i in range(8)}


def test_log_lines(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratoon.engine")
    collect(Client(engine).ask("x" * 300))
    collect(Client(engine).ask("x" * 300))
    lines = [record.getMessage() for record in caplog.records]
    prefills = [line for line in lines if line.startswith("prefill")]
    assert prefills[0] == "prefill  20.1% (64/319 tok seq=0)"
    assert "prefill 100.0% (319/319 tok seq=0)" in prefills
    cold, warm = [line for line in lines if line.startswith("req")]
    spans = r"\d+\.\ds \(queue \d+\.\ds prefill \d+\.\ds decode \d+\.\ds\)"
    assert re.fullmatch(rf"req 319\+300 cold reuse=0 forwarded=319 {spans} seq=0", cold)
    assert re.fullmatch(rf"req 319\+300 device reuse=318 forwarded=1 {spans} seq=\d", warm)
    assert not any("xxx" in line for line in lines)


def test_progress_can_be_coarser_or_off(
    model: DummyModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ratoon.engine")
    for config, n_lines in (
        (EngineConfig(progress_step=50), 2),
        (EngineConfig(has_progress=False), 0),
    ):
        caplog.clear()
        engine = Engine(DummyModel(n_ctx=4096, n_batch=64), config)
        engine.start()
        collect(Client(engine).ask("y" * 600))
        engine.stop()
        assert sum(r.getMessage().startswith("prefill") for r in caplog.records) == n_lines


def test_the_owner_of_replies_hears_which_are_out_of_reach() -> None:
    lost: list[bytes] = []
    model = DummyModel(n_ctx=1000, n_seq=2, n_batch=64)
    engine = Engine(model, EngineConfig(host_bytes=1))
    engine.on_lost = lost.extend
    engine.start()
    client = Client(engine)
    paths = []
    for text in ("a" * 300, "b" * 300, "c" * 300):
        assert collect(client.ask(text, max_tokens=50))[0] == text[:50]
        paths.append(path_digest([*chatml(model, text), *text[:50].encode()]))
    assert lost == paths[:1], "the third found no room beside the second"
    collect(client.ask("c" * 300, max_tokens=50))
    assert paths[2] not in lost
    engine.stop()


def test_cancel_ends_a_request_within_a_step() -> None:
    engine = Engine(DummyModel(n_ctx=1 << 16, n_batch=64, row_s=0.0005), EngineConfig())
    engine.start()
    events = Client(engine).ask("z" * 20_000)
    assert isinstance(events.get(timeout=60), Started)
    engine.cancel("r1")
    assert collect(events)[1] == Finished(FinishReason.CANCELLED, 0)
    assert engine.inspect()["running"] == []
    engine.stop()


def test_limits(engine: Engine) -> None:
    client = Client(engine)
    with pytest.raises(PromptTooLong, match=r"prompt is too long: 4\d\d\d tokens > 4095 maximum"):
        client.ask("x" * 4090)


def test_a_full_queue_refuses() -> None:
    engine = Engine(DummyModel(row_s=0.001), EngineConfig(max_queue=2, max_running=1))
    client = Client(engine)
    client.ask("a" * 100)
    client.ask("b" * 100)
    with pytest.raises(Overloaded):
        client.ask("c" * 100)


def test_stop_fails_what_is_unfinished() -> None:
    engine = Engine(DummyModel(row_s=0.0005), EngineConfig(max_running=1))
    engine.start()
    client = Client(engine)
    ends = [client.ask("q" * 5000), client.ask("w" * 5000)]
    assert isinstance(ends[0].get(timeout=60), Started)
    engine.stop()
    for events in ends:
        _, end = collect(events)
        assert isinstance(end, Failed)
        assert isinstance(end.error, Overloaded)
    with pytest.raises(Overloaded):
        client.ask("again")


class Broken(DummyModel):
    """Fails on demand."""

    fault: Exception | None = None

    def forward(self, chunks: Sequence[Chunk]) -> list[Logits | None]:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return super().forward(chunks)


def test_a_failed_step_ends_its_requests_only() -> None:
    model = Broken(n_ctx=4096)
    engine = Engine(model, EngineConfig())
    engine.start()
    client = Client(engine)
    model.fault = RuntimeError("a bug")
    assert isinstance(collect(client.ask("first"))[1], Failed)
    assert collect(client.ask("second"))[0] == "second"
    engine.cache.check()
    engine.stop()


def test_a_broken_computation_is_begun_anew_once() -> None:
    model = Broken(n_ctx=4096)
    engine = Engine(model, EngineConfig())
    engine.start()
    client = Client(engine)
    model.fault = ModelError("decode failed")
    assert collect(client.ask("first"))[0] == "first"
    engine.cache.check()
    engine.stop()


def test_what_is_still_in_the_inbox_hears_of_the_end() -> None:
    engine = Engine(DummyModel(row_s=0.001), EngineConfig(max_running=1))
    engine.start()
    client = Client(engine)
    asked = [client.ask("q" * 400) for _ in range(4)]
    engine.stop()
    for events in asked:
        assert isinstance(collect(events)[1], Failed)


def test_no_room_is_survived() -> None:
    model = Broken(n_ctx=4096)
    engine = Engine(model, EngineConfig())
    engine.start()
    client = Client(engine)
    collect(client.ask("parked " * 50))
    model.fault = NoRoom("no cells")
    assert collect(client.ask("second"))[0] == "second"
    engine.stop()


class Unsavable(DummyModel):
    """Can't save a state, once."""

    is_broken = True

    def save(self, seq_id: SeqId) -> memoryview:
        if self.is_broken:
            self.is_broken = False
            raise ModelError("the state could not be saved")
        return super().save(seq_id)


def test_a_step_that_broke_half_way_leaves_nothing_behind() -> None:
    engine = Engine(Unsavable(n_ctx=4096, n_seq=2), EngineConfig())
    engine.start()
    client = Client(engine)
    for i in range(2):
        collect(client.ask(f"{i}" * 500))
    assert isinstance(collect(client.ask("x" * 500))[1], Failed)
    for i in range(4):
        assert collect(client.ask(f"{i}" * 500))[0] == f"{i}" * 500
        engine.cache.check()
    engine.stop()


class Forgetful(DummyModel):
    """Refuses every saved state."""

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        raise BadState("a saved state was refused")


class Poisoned(DummyModel):
    """Breaks whenever it goes on from a restored state."""

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        self._held[seq_id] = [0]


@pytest.mark.parametrize("kind", [Forgetful, Poisoned])
def test_a_refused_or_bad_snapshot_costs_one_computation(kind: type[DummyModel]) -> None:
    engine = Engine(kind(n_ctx=4096), EngineConfig())
    engine.start()
    client = Client(engine)
    collect(client.ask("n" * 500))
    with engine._lock:
        assert engine.cache.offload_all(0.0)
    assert collect(client.ask("n" * 500))[0] == "n" * 500
    assert engine.inspect()["cache"]["host_snapshots"] == 0  # type: ignore[index]
    engine.cache.check()
    engine.stop()


def test_what_is_saved_of_a_lost_sequence_is_lost_too() -> None:
    """As when the sequences are compacted in the plan that also restores one."""
    model, seq_id = DummyModel(n_ctx=4096), SeqId(0)
    engine = Engine(model, EngineConfig())
    bad, moved = Snapshot(1, 5, data=memoryview(b"wrong")), Snapshot(1, 4)
    compacted = Save(seq_id, moved), Drop(seq_id), Restore(moved, seq_id, 1)
    assert engine._execute([Restore(bad, seq_id, 1), *compacted]), "nothing may be computed on it"


def test_a_listener_that_is_gone_hurts_nobody(engine: Engine) -> None:
    def gone(_: Event) -> None:
        raise RuntimeError("the loop is closed")

    engine.submit(Request("gone", chatml(engine.model, "hello"), 10, emit=gone))
    assert collect(Client(engine).ask("still here"))[0] == "still here"


def test_a_prompt_may_be_computed_without_a_reply(engine: Engine) -> None:
    client = Client(engine)
    assert collect(client.ask("hello", max_tokens=0)) == ("", Finished(FinishReason.LENGTH, 0))
    events = client.ask("hello")
    started = events.get(timeout=60)
    assert isinstance(started, Started)
    assert started.n_cached == started.n_prompt - 1
    assert collect(events)[0] == "hello"


def forcing(text: str) -> ForcedTokens:
    """Every reply is this text."""
    return lambda request: [*text.encode(), 257]


def test_forced_tokens_are_streamed_and_cached_as_sampled_ones(engine: Engine) -> None:
    engine.forced_tokens = forcing("forced")
    client = Client(engine)
    assert collect(client.ask("hello")) == ("forced", Finished(FinishReason.STOP, 6))
    assert collect(client.ask("hello", max_tokens=3)) == ("for", Finished(FinishReason.LENGTH, 3))

    events: queue.Queue[Event] = queue.Queue()
    said = [*chatml(engine.model, "hello"), *b"forced"]
    engine.submit(Request("next", [*said, 257, 10, 256], 10, emit=events.put))
    started = events.get(timeout=60)
    assert isinstance(started, Started)
    assert started.n_cached == len(said)
    engine.cache.check()


def test_a_reply_without_a_forced_end_goes_on(engine: Engine) -> None:
    engine.forced_tokens = lambda request: b"he"
    assert collect(Client(engine).ask("hello"))[0] == "hello"


def test_forced_tokens_survive_preemption() -> None:
    replies = {f"r{i}": f"{i} goes on " * 60 for i in (1, 2)}
    engine = Engine(
        DummyModel(n_ctx=1024, n_batch=64),
        EngineConfig(),
        forced_tokens=lambda request: [*replies[request.id].encode(), 257],
    )
    client = Client(engine)
    asked = [client.ask("a" * 50), client.ask("b" * 50)]
    engine.start()
    assert [collect(events)[0] for events in asked] == list(replies.values())
    preemptions = engine.inspect()["preemptions"]
    assert isinstance(preemptions, int)
    assert preemptions >= 1
    engine.stop()


def test_what_the_hook_raises_reaches_the_caller_only(engine: Engine) -> None:
    def broken(request: Request) -> list[int]:
        raise LookupError("no script")

    engine.forced_tokens = broken
    with pytest.raises(LookupError):
        Client(engine).ask("hello")
    engine.forced_tokens = None
    assert collect(Client(engine).ask("hello"))[0] == "hello"


class Refusing:
    """A guide that lets nothing come from the ``n``th token on."""

    def __init__(self, n: int) -> None:
        self.n_left = n

    def allowed(self) -> bytes | None:
        return None if self.n_left else b"\0"

    def accept(self, token: int) -> bool:
        self.n_left -= 1
        return True


def test_a_guide_that_lets_nothing_come_fails_its_own_request_only(engine: Engine) -> None:
    client = Client(engine)
    stuck: queue.Queue[Event] = queue.Queue()
    others = [client.ask("a message that is long enough " * 3) for _ in range(2)]
    prompt = chatml(engine.model, "hello")
    engine.submit(Request("stuck", prompt, 100, emit=stuck.put, guide=Refusing(3)))
    text, end = collect(stuck)
    assert text == "hel"
    assert isinstance(end, Failed)
    assert isinstance(end.error, ModelError)
    for events in others:
        assert collect(events)[1] == Finished(FinishReason.STOP, 90)
    assert collect(client.ask("hello"))[0] == "hello"
    assert engine.inspect()["running"] == []

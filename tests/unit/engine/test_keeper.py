"""Engines that share a folder of states, one after the other and side by side."""

from __future__ import annotations

import logging
import queue
import threading
import time
from pathlib import Path

import pytest

from ratoon.cache.placement import MemoryKind, SeqId
from ratoon.disk.files import StateFiles
from ratoon.disk.store import DiskConfig, DiskStore
from ratoon.engine.dummy import DummyModel
from ratoon.engine.engine import Engine, EngineConfig
from ratoon.engine.events import Event, Failed, Finished, Started, Token
from ratoon.engine.model import BadState
from ratoon.engine.request import Request
from tests.unit.disk.states import PRINT

WAIT_S = 60.0
TEXT = "once upon a time " * 30
KINDS = [MemoryKind.FULL, MemoryKind.RECURRENT]


def chatml(text: str) -> list[int]:
    return [256, *f"user\n{text}".encode(), 257, 10, 256, *b"assistant\n"]


class Server:
    """An engine on a folder."""

    def __init__(self, folder: Path, model: DummyModel | None = None, **config: float) -> None:
        self.store = DiskStore(folder, PRINT, DiskConfig(1 << 30))
        self.engine = Engine(
            model or DummyModel(n_ctx=8192, n_batch=64),
            EngineConfig(**config),  # type: ignore[arg-type]
            store=self.store,
        )
        self.engine.start()

    def submit(self, prompt: list[int], name: str = "r") -> queue.Queue[Event]:
        events: queue.Queue[Event] = queue.Queue()
        self.engine.submit(Request(name, prompt, 2000, emit=events.put))
        return events

    def ask(self, text: str) -> tuple[str, Started]:
        """The reply, and how it began."""
        events = self.submit(chatml(text))
        reply, started = b"", None
        while True:
            event = events.get(timeout=WAIT_S)
            match event:
                case Started():
                    started = event
                case Token():
                    reply += event.piece
                case Finished():
                    assert started is not None
                    return reply.decode(), started
                case Failed():
                    raise event.error

    def written(self, n: int) -> None:
        """Wait until so many files are written."""
        until = time.monotonic() + WAIT_S
        while self.store.stats()["disk_written"] < n:
            assert time.monotonic() < until
            time.sleep(0.01)

    def kill(self) -> None:
        """Stop without a word to the disk."""
        self.engine._keeper = None
        self.engine.stop()
        self.store.close()


def fail(seq_id: SeqId) -> memoryview:
    raise ZeroDivisionError


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_loses_nothing(tmp_path: Path, kind: MemoryKind) -> None:
    first = Server(tmp_path, DummyModel(n_ctx=8192, n_batch=64, memory=kind))
    assert first.ask(TEXT)[1].layer == "cold"
    first.engine.stop()
    second = Server(tmp_path, DummyModel(n_ctx=8192, n_batch=64, memory=kind))
    reply, started = second.ask(TEXT)
    assert reply == TEXT
    assert started.layer == "disk"
    assert started.n_cached >= len(TEXT)
    second.engine.stop()


def test_a_state_is_written_as_soon_as_nothing_runs(tmp_path: Path) -> None:
    first = Server(tmp_path)
    first.ask(TEXT)
    first.written(1)
    first.kill()
    second = Server(tmp_path)
    assert second.ask(TEXT)[1].layer == "disk"
    second.engine.stop()


def test_what_a_running_request_computed_is_kept(tmp_path: Path) -> None:
    first = Server(tmp_path, DummyModel(n_ctx=8192, n_batch=64, row_s=0.001))
    events = first.submit(chatml(TEXT * 4))
    while not isinstance(events.get(timeout=WAIT_S), Token):
        pass
    first.engine.stop()
    second = Server(tmp_path)
    started = second.ask(TEXT * 4)[1]
    assert started.layer == "disk"
    assert started.n_cached == len(chatml(TEXT * 4)) - 1
    second.engine.stop()


def test_two_engines_at_once(tmp_path: Path) -> None:
    one, two = Server(tmp_path), Server(tmp_path)
    assert one.ask(TEXT)[1].layer == two.ask(TEXT)[1].layer == "cold"
    one.engine.stop()
    two.engine.stop()
    third = Server(tmp_path)
    assert third.ask(TEXT)[1].layer == "disk"
    assert len(list(tmp_path.glob("*.state"))) == 1
    third.engine.stop()


def test_a_file_damaged_meanwhile_is_computed_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Server(tmp_path)
    first.ask(TEXT)
    first.engine.stop()
    second = Server(tmp_path)
    (file,) = tmp_path.glob("*.state")
    damaged = bytearray(file.read_bytes())
    damaged[-100] ^= 1
    file.chmod(0o600)
    file.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        reply, started = second.ask(TEXT)
    assert (reply, started.layer) == (TEXT, "cold")
    assert any("damaged" in record.getMessage() for record in caplog.records)
    second.engine.stop()


class Picky(DummyModel):
    """Refuses every saved state."""

    def restore(self, seq_id: SeqId, data: memoryview) -> None:
        raise BadState("refused")


def test_a_state_that_the_model_refuses_is_removed(tmp_path: Path) -> None:
    first = Server(tmp_path)
    first.ask(TEXT)
    first.engine.stop()
    (old,) = tmp_path.glob("*.state")
    inode = old.stat().st_ino
    second = Server(tmp_path, Picky(n_ctx=8192, n_batch=64))
    assert second.ask(TEXT)[0] == TEXT
    second.engine.stop()
    assert [file for file in tmp_path.glob("*.state") if file.stat().st_ino == inode] == []


def test_many_ask_for_what_is_on_disk(tmp_path: Path) -> None:
    first = Server(tmp_path)
    first.ask(TEXT)
    first.engine.stop()
    second = Server(tmp_path)
    queues = [second.submit(chatml(f"{TEXT}{i}"), f"r{i}") for i in range(6)]
    begun = [events.get(timeout=WAIT_S) for events in queues]
    assert all(isinstance(event, Started) and event.n_cached >= len(TEXT) for event in begun)
    assert second.store.stats()["disk_loaded"] == 1
    second.engine.stop()


def test_a_client_that_leaves_while_its_state_is_read(tmp_path: Path) -> None:
    first = Server(tmp_path)
    first.ask(TEXT)
    first.engine.stop()
    second = Server(tmp_path)
    go = threading.Event()
    read = second.store.load
    second.store.load = lambda key: (go.wait(WAIT_S), read(key))[1]  # type: ignore[method-assign]
    events = second.submit(chatml(TEXT), "gone")
    second.engine.cancel("gone")
    assert isinstance(events.get(timeout=WAIT_S), Finished)
    go.set()
    assert second.ask(TEXT)[0] == TEXT
    second.engine.stop()


def test_what_was_read_for_nobody_is_let_go_though_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Server(tmp_path)
    first.ask(TEXT)
    first.engine.stop()
    (file,) = tmp_path.glob("*.state")
    monkeypatch.setattr("ratoon.cache.disk.MAPPED_S", 0.0)
    second = Server(tmp_path)
    go = threading.Event()
    read = second.store.load
    second.store.load = lambda key: (go.wait(WAIT_S), read(key))[1]  # type: ignore[method-assign]
    events = second.submit(chatml(TEXT), "gone")
    while not second.engine.cache.disk.has_read:
        time.sleep(0.01)
    second.engine.cancel("gone")
    assert isinstance(events.get(timeout=WAIT_S), Finished)
    go.set()
    until = time.monotonic() + WAIT_S
    while not StateFiles(tmp_path).evict(file.stem):
        assert time.monotonic() < until, "it is still held"
        time.sleep(0.01)
    second.engine.stop()


def test_the_store_is_closed_even_if_keeping_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)
    server.engine.cache.disk.consider = lambda *_: None  # type: ignore[method-assign]
    server.ask(TEXT)
    server.engine.model.save = fail  # type: ignore[method-assign]
    server.engine.stop()
    assert "ZeroDivisionError" in caplog.text
    assert not server.store._writer.is_alive()


def test_what_is_too_large_for_the_disk_is_not_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path)
    server.store.config = DiskConfig(100)
    server.engine.model.save = fail  # type: ignore[method-assign]
    assert server.ask(TEXT)[0] == TEXT
    server.engine.stop()
    assert "ZeroDivisionError" not in caplog.text


def test_no_time_to_flush(tmp_path: Path) -> None:
    first = Server(tmp_path, flush_s=0.0)
    first.ask(TEXT)
    first.engine.stop()
    second = Server(tmp_path)
    assert second.ask(TEXT)[0] == TEXT
    second.engine.stop()

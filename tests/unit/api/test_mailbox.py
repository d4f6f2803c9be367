"""Events on their way from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest
from starlette.requests import ClientDisconnect

from ratoon.api.reply import GATHER_S, Mailbox
from ratoon.engine.events import Event, Finished, FinishReason, Token

LIMIT_S = 10.0


def send(mailbox: Mailbox, n: int, seed: int, pause_s: float) -> threading.Thread:
    """From another thread, at random moments."""

    def run() -> None:
        chance = random.Random(seed)
        for token in range(n):
            mailbox.put(Token(token, b"x"))
            if chance.random() < 0.5:
                time.sleep(chance.random() * pause_s)
        mailbox.put(Finished(FinishReason.STOP, n))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


async def take_all(mailbox: Mailbox) -> tuple[list[Event], int]:
    events: list[Event] = []
    n_takes = 0
    while not mailbox.is_over:
        taken = await mailbox.take(mailbox.deadline(LIMIT_S))
        assert taken, "woken without an event"
        events += taken
        n_takes += 1
    return events, n_takes


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("pause_s", [0.0, 0.0005, 0.01, 0.05])
def test_all_events_come_once_and_in_order(seed: int, pause_s: float) -> None:
    n = 20 if pause_s > 0.01 else 400

    async def run() -> list[Event]:
        mailbox = Mailbox()
        thread = send(mailbox, n, seed, pause_s)
        events, _ = await take_all(mailbox)
        thread.join()
        return events

    events = asyncio.run(run())
    assert [event.token for event in events if isinstance(event, Token)] == list(range(n))
    assert events[-1] == Finished(FinishReason.STOP, n)


def test_what_comes_fast_is_taken_together() -> None:
    async def run() -> tuple[int, float]:
        mailbox = Mailbox()
        began_s = time.perf_counter()
        thread = send(mailbox, 400, 0, 0.002)
        _, n_takes = await take_all(mailbox)
        thread.join()
        return n_takes, time.perf_counter() - began_s

    n_takes, seconds = asyncio.run(run())
    assert n_takes <= seconds / GATHER_S + 2


def test_the_end_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratoon.api.reply.GATHER_S", 10 * LIMIT_S)

    async def run() -> list[Event]:
        mailbox = Mailbox()
        mailbox.put(Token(0, b"x"))
        await mailbox.take(mailbox.deadline(LIMIT_S))
        mailbox.put(Token(1, b"x"))
        taking = asyncio.create_task(mailbox.take(mailbox.deadline(LIMIT_S)))
        await asyncio.sleep(0.01)
        assert not taking.done()
        mailbox.put(Finished(FinishReason.STOP, 2))
        return await taking

    assert asyncio.run(run()) == [Token(1, b"x"), Finished(FinishReason.STOP, 2)]


def test_nothing_comes_is_told_at_the_deadline() -> None:
    async def run() -> list[Event]:
        mailbox = Mailbox()
        return await mailbox.take(mailbox.deadline(0.02))

    assert asyncio.run(run()) == []


def test_a_client_that_left_ends_the_wait() -> None:
    async def run() -> None:
        mailbox = Mailbox()
        asyncio.get_running_loop().call_later(0.02, mailbox.abandon)
        await mailbox.take(mailbox.deadline(LIMIT_S))

    with pytest.raises(ClientDisconnect):
        asyncio.run(run())

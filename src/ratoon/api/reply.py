"""One running request as the event loop sees it: submit, listen, ping, and cancel on leaving."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from ratoon.api.replies import RecordedStream
from ratoon.api.service import Service
from ratoon.api.stream import PING, ReplyStream, WireEvent, joined
from ratoon.engine.events import Event, Failed, Finished, Started, Token
from ratoon.engine.request import Request
from ratoon.metrics import Metrics

GATHER_S = 0.05


class Mailbox:
    """Carries events from the engine's thread to the event loop.

    Events that come faster than one in ``GATHER_S`` are taken together, but for the last one, which
    nothing follows: each wake-up of the loop, and of the client, takes a core from the threads that
    compute.
    """

    def __init__(self) -> None:
        self.is_over = False  # the engine has said its last word, or was told to stop
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._has_news = asyncio.Event()
        self._has_all = asyncio.Event()
        self._is_told = False  # that there are events; told once until they are taken
        self._taken_s = 0.0  # loop time
        self._is_abandoned = False

    def put(self, event: Event) -> None:
        """Called on the engine's thread; never blocks, never fails."""
        self._events.append(event)
        is_last = isinstance(event, Finished | Failed)
        with suppress(RuntimeError):  # the loop is closed: the server is going down
            if not self._is_told:
                self._is_told = True
                self._loop.call_soon_threadsafe(self._has_news.set)
            if is_last:
                self._loop.call_soon_threadsafe(self._has_all.set)

    def abandon(self) -> None:
        """The client has left; what is undelivered has no reader."""
        self._is_abandoned = True
        self._has_news.set()
        self._has_all.set()

    async def take(self, until: float) -> list[Event]:
        """All events that have come, at least one; none if there is none by loop time ``until``."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._wait()
                await self._gather()
        if self._is_abandoned:
            raise ClientDisconnect
        events: list[Event] = []
        while self._events:
            events.append(self._events.popleft())
        self.is_over |= any(isinstance(event, Finished | Failed) for event in events)
        self._taken_s = self._loop.time()
        return events

    async def _wait(self) -> None:
        while not (self._events or self._is_abandoned):
            self._has_news.clear()
            self._is_told = False
            if not self._events:  # else one has come just now, and was not told of
                await self._has_news.wait()

    async def _gather(self) -> None:
        """Let more come if the last ones were taken a moment ago."""
        until = self._taken_s + GATHER_S
        if until > self._loop.time() and not self._has_all.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._has_all.wait()

    def deadline(self, seconds: float) -> float:
        """The loop time in so many seconds."""
        return self._loop.time() + seconds


class Meter:
    """Turns one request's events into measurements."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._arrived_s = clock()
        self._last_token_s: float | None = None

    def observe(self, event: Event) -> None:
        now_s = self._clock()
        match event:
            case Started():
                queue_s = now_s - self._arrived_s
                n_forwarded = event.n_prompt - event.n_cached
                self._metrics.observe_started(queue_s, event.layer, event.n_cached, n_forwarded)
            case Token():
                self._observe_token(now_s)

    def _observe_token(self, now_s: float) -> None:
        if self._last_token_s is None:
            self._metrics.observe_first_token(now_s - self._arrived_s)
        else:
            self._metrics.observe_next_token(now_s - self._last_token_s)
        self._last_token_s = now_s

    def close(self, stop_reason: str, n_output: int) -> None:
        self._metrics.count_request(stop_reason, n_output)


async def reply_events(
    service: Service,
    request: Request,
    mailbox: Mailbox,
    stream: ReplyStream | RecordedStream,
    meter: Meter,
    receive: Receive,
) -> AsyncGenerator[list[WireEvent]]:
    """Submit the request and yield its stream events as they come, with pings in between.

    However this generator is left, the engine stops working on the request. Something is yielded
    within ``commit_s``; an error before that can still become an HTTP status.
    """
    settings = service.settings
    service.engine.submit(request)
    leave = partial(_leave, service, request, mailbox)
    watcher = asyncio.create_task(_watch(receive, mailbox, leave))
    outcome = "cancelled"
    try:
        due = mailbox.deadline(settings.commit_s)
        while stream.stop_reason is None:
            events = await mailbox.take(due)
            for batch in _batches(events, stream, meter) if events else [[PING]]:
                if stream.stop_reason is not None:
                    leave()  # a stop sequence ends the reply before the engine does
                yield batch
                due = mailbox.deadline(settings.ping_s)
        outcome = stream.stop_reason
    except ClientDisconnect:
        raise
    except Exception:
        outcome = "error"
        raise
    finally:
        watcher.cancel()
        leave()
        meter.close(outcome, stream.n_output)


def _batches(
    events: list[Event], stream: ReplyStream | RecordedStream, meter: Meter
) -> Iterator[list[WireEvent]]:
    """What these events cause, if anything: one batch, and then the error if one of them fails."""
    batch: list[WireEvent] = []
    try:
        for event in events:
            if stream.stop_reason is None:
                meter.observe(event)
                batch += stream.feed(event)
    finally:
        if batch:
            yield joined(batch)


def _leave(service: Service, request: Request, mailbox: Mailbox) -> None:
    """Nobody listens any more: the engine need not go on."""
    if not mailbox.is_over:
        mailbox.is_over = True
        service.engine.cancel(request.id)


async def _watch(receive: Receive, mailbox: Mailbox, leave: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    leave()
    mailbox.abandon()

"""One request to the engine as a coroutine."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ratoon.engine.events import Event, Failed, Finished, FinishReason, Scored, Started, Token
from ratoon.engine.request import Guide, Priority, Request, SamplingParams


class Engine(Protocol):
    """The part of the engine that the router uses. Every method may be called from any thread."""

    @property
    def n_ctx(self) -> int: ...

    def submit(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...


@dataclass(slots=True)
class Answer:
    """What the engine told of one request."""

    n_prompt: int = 0
    n_cached: int = 0
    layer: str = ""
    scored: Scored | None = None
    text: bytes = b""
    reason: FinishReason | None = None


@dataclass(slots=True)
class _Listener:
    """Collects events on the engine's thread, and wakes the coroutine at the last one."""

    done: asyncio.Future[Answer]
    answer: Answer = field(default_factory=Answer)

    def hear(self, event: Event) -> None:
        answer = self.answer
        match event:
            case Started():
                answer.n_prompt, answer.n_cached = event.n_prompt, event.n_cached
                answer.layer = event.layer
            case Scored():
                answer.scored = event
            case Token():
                answer.text += event.piece
            case Finished():
                answer.reason = event.reason
                self._settle(lambda: self.done.set_result(answer))
            case Failed():
                error = event.error
                self._settle(lambda: self.done.set_exception(error))

    def _settle(self, act: Callable[[], None]) -> None:
        def once() -> None:
            if not self.done.done():
                act()

        with suppress(RuntimeError):  # the loop is closed: the server is going down
            self.done.get_loop().call_soon_threadsafe(once)


@dataclass(frozen=True, slots=True)
class Task:
    """What to ask. With ``candidates`` the prompt is scored; without them and ``max_tokens`` 0 it
    is only computed and kept."""

    prompt: list[int]
    candidates: tuple[tuple[int, ...], ...] = ()
    max_tokens: int = 0
    boundaries: tuple[int, ...] = ()
    is_passing: bool = False
    guide: Guide | None = None
    priority: Priority = Priority.INTERACTIVE
    label: str = "route"


async def ask(engine: Engine, task: Task, watch: Callable[[Request], None] | None = None) -> Answer:
    """Wait for the engine's last word; a coroutine that is cancelled cancels the request.

    ``watch`` gets the request when it is queued; its counters tell how far it is. Raises what the
    engine raises or fails with.
    """
    listener = _Listener(asyncio.get_running_loop().create_future())
    request = Request(
        id=f"route_{uuid.uuid4().hex}",
        prompt=task.prompt,
        max_tokens=task.max_tokens,
        emit=listener.hear,
        sampling=SamplingParams(),
        boundaries=task.boundaries,
        is_passing=task.is_passing,
        priority=task.priority,
        guide=task.guide,
        candidates=task.candidates,
        label=task.label,
    )
    engine.submit(request)
    if watch is not None:
        watch(request)
    try:
        return await listener.done
    except asyncio.CancelledError:
        engine.cancel(request.id)
        raise

"""An engine that plays scripts, a renderer of bytes, and a real HTTP server around them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ratoon import wire
from ratoon.chat.render import Prompt
from ratoon.chat.thinking import Reasoning
from ratoon.engine.events import Event, Finished, FinishReason, Started, Token
from ratoon.engine.request import Request
from ratoon.errors import Overloaded

Step = Event | float  # an event to emit, or seconds to wait
Script = Callable[[Request], Iterator[Step]]


def say(text: str | bytes, *, n_cached: int = 0, size: int = 1, wait_s: float = 0.0) -> Script:
    """Reply with the text, ``size`` bytes a token, so characters are split across tokens."""
    data = text.encode() if isinstance(text, str) else text

    def script(request: Request) -> Iterator[Step]:
        yield Started(len(request.prompt), n_cached, "host" if n_cached else "cold")
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        for n, piece in enumerate(pieces):
            if n == request.max_tokens:
                yield Finished(FinishReason.LENGTH, n)
                return
            yield Token(0, piece)
            yield wait_s
        yield Finished(FinishReason.STOP, len(pieces))

    return script


def play(*steps: Step) -> Script:
    """The same steps for every request."""
    return lambda request: iter(steps)


def stall(request: Request) -> Iterator[Step]:
    """A request that waits in the queue until it is cancelled."""
    yield 60.0


def endless(request: Request) -> Iterator[Step]:
    """A reply that goes on until it is cancelled."""
    yield Started(len(request.prompt), 0, "cold")
    while True:
        yield Token(0, b"x")
        yield 0.01


@dataclass
class ScriptedEngine:
    """Plays ``script`` for every request, each on its own thread."""

    script: Script = field(default_factory=lambda: say("Hello"))
    model_name: str = "tiny"
    n_ctx: int = 100_000
    bytes_per_token: int = 4
    is_full: bool = False
    held: list[list[int]] = field(default_factory=list)
    submitted: list[Request] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _stops: dict[str, threading.Event] = field(default_factory=dict)

    def submit(self, request: Request) -> None:
        if self.is_full:
            raise Overloaded("Overloaded")
        self.submitted.append(request)
        self._stops[request.id] = threading.Event()
        threading.Thread(target=self._run, args=[request], daemon=True).start()

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)
        self._stops[request_id].set()

    def match_length(self, tokens: list[int]) -> int:
        return max((_n_common(tokens, other) for other in self.held), default=0)

    def evict(self) -> int:
        return 0

    def inspect(self) -> dict[str, object]:
        figures = {"host_bytes": 7, "device_tokens": 8, "tree_nodes": 9}
        return {"running": [{}, {}], "waiting": [], "cache": figures}

    def wait_for(self, what: Callable[[ScriptedEngine], object], limit_s: float = 30.0) -> float:
        """Seconds until ``what`` held; fails if it never did."""
        began_s = time.monotonic()
        while not what(self):
            assert time.monotonic() - began_s < limit_s, "it did not happen"
            time.sleep(0.005)
        return time.monotonic() - began_s

    def _run(self, request: Request) -> None:
        stop = self._stops[request.id]
        n_tokens = 0
        for step in self.script(request):
            if isinstance(step, float):
                stop.wait(step)
            if stop.is_set():
                request.emit(Finished(FinishReason.CANCELLED, n_tokens))
                return
            if not isinstance(step, float):
                n_tokens += isinstance(step, Token)
                request.emit(step)


class ByteRenderer:
    """One token per byte of the messages. A run of system messages behind the first one is late."""

    def __init__(self) -> None:
        self.fired: dict[str, int] = {}
        self.hoists: list[bool] = []

    def render(
        self, request: wire.CountTokensRequest, *, hoist: bool = True, thinks: bool = False
    ) -> Prompt:
        self.hoists.append(hoist)
        messages = list(request.messages)
        has_late_run = len(messages) > 1 and messages[1].role == "system"
        if has_late_run and hoist:
            messages[0:2] = [messages[1], messages[0]]
        text = "".join(m.model_dump_json() for m in messages)
        return Prompt(
            tokens=list(text.encode()),
            boundaries=(len(text.encode()) // 2,),
            fired=self.fired,
            has_late_run=has_late_run,
            parses_tools=False,
            text_len=len(text),
            reasoning=Reasoning(is_open=thinks),
            thinks=thinks,
        )


class Switch:
    """An application that is another one for each test, so that one server is enough."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@contextmanager
def serving(app: ASGIApp, *, has_lifespan: bool = False) -> Iterator[str]:
    """The base URL of a real server on a free port."""
    config = uvicorn.Config(
        app,
        port=0,
        log_level="error",
        lifespan="on" if has_lifespan else "off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(5)


def sse_events(text: str) -> list[dict[str, object]]:
    """The records of a stream, checked for their two-line form."""
    events = []
    for record in text.removesuffix("\n\n").split("\n\n"):
        event_line, data_line = record.split("\n")
        event = json.loads(data_line.removeprefix("data: "))
        assert event_line == f"event: {event['type']}"
        events.append(event)
    return events


def _n_common(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )

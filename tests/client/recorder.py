"""What a server was asked and what it cost, one line a request. Shapes and counts, never text."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratoon.api.forms import AGENT_HEADER, SESSION_HEADER
from ratoon.engine.events import Event, Failed, Finished
from ratoon.engine.request import Request

BEGUN = "begun"
_MESSAGE_ID = re.compile(rb'"id": ?"(msg_\w+)"')


@dataclass(slots=True)
class Record:
    """One request. ``digest`` is equal for equal bodies only. Of all that the same agent said and
    heard before, ``n_shared`` tokens begin this prompt, at most; the exchange that has them, prompt
    and reply, is ``n_known`` tokens long.
    """

    path: str
    session: str = ""
    agent: str = ""
    betas: list[str] = field(default_factory=list)
    retry: str = ""
    digest: str = ""
    stream: bool = False
    max_tokens: int = 0
    n_messages: int = 0
    n_system: int = 0  # messages of role system
    n_opening: int = 0  # texts in the first message
    tools: list[str] = field(default_factory=list)

    status: int = 0
    outcome: str = ""  # how the engine ended it; empty: it never saw it
    n_prompt: int = 0
    n_cached: int = 0
    n_forwarded: int = 0
    n_output: int = 0
    n_known: int = 0
    n_shared: int = 0
    n_at_hang_up: int | None = None  # tokens of the reply there were when the client left


@dataclass(slots=True)
class _Watched:
    """A request on the engine; ``record`` is known once its reply has begun."""

    request: Request
    outcome: str = ""
    record: Record | None = None


class Recorder:
    """An ASGI layer that also listens to the engine.

    It notes in ``file`` that a request has begun, and writes its ``Record`` once both the answer
    and the engine have come to an end.
    """

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app = app
        self._file = file
        self._lock = threading.Lock()  # the engine's thread and the event loop meet here
        self._watched: dict[str, _Watched] = {}
        self._known: dict[tuple[str, str], list[list[int]]] = {}

    def watch(self, request: Request) -> None:
        """Follow a request that has just reached the engine."""
        watched = self._watched[request.id] = _Watched(request)
        emit = request.emit

        def listen(event: Event) -> None:
            if isinstance(event, Finished | Failed):
                watched.outcome = "failed" if isinstance(event, Failed) else event.reason.value
                self._write_if_over(watched)
            emit(event)

        request.emit = listen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        self._append(BEGUN)
        body = bytearray()
        record = Record(scope["path"])
        watched: _Watched | None = None

        async def hear() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            if message["type"] == "http.disconnect" and watched and not watched.outcome:
                record.n_at_hang_up = len(watched.request.output)
            return message

        async def say(message: Message) -> None:
            nonlocal watched
            if message["type"] == "http.response.start":
                record.status = message["status"]
            elif watched is None and (found := _MESSAGE_ID.search(message.get("body", b""))):
                watched = self._watched.get(found[1].decode())
            await send(message)

        try:
            await self._app(scope, hear, say)
        finally:
            _describe(record, Headers(scope=scope), bytes(body))
            if watched is None:
                self._append(asdict(record))
            else:
                watched.record = record
                self._write_if_over(watched)

    def _write_if_over(self, watched: _Watched) -> None:
        with self._lock:
            record, request = watched.record, watched.request
            if record is None or not watched.outcome:
                return
            if self._watched.pop(request.id, None) is None:
                return
            known = self._known.setdefault((record.session, record.agent), [])
            record.outcome = watched.outcome
            record.n_prompt, record.n_output = len(request.prompt), len(request.output)
            record.n_cached, record.n_forwarded = request.n_cached, request.n_forwarded
            shared = [(_n_common(each, request.prompt), -len(each)) for each in known]
            n_shared, less_known = max(shared, default=(0, 0))
            record.n_shared, record.n_known = n_shared, -less_known
            known.append(request.prompt + request.output)
        self._append(asdict(record))

    def _append(self, value: object) -> None:
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value) + "\n")


def read_records(file: Path) -> tuple[list[Record], int]:
    """The requests that have ended, in that order, and how many have not."""
    if not file.exists():
        return [], 0
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    values = [json.loads(line) for line in lines if line.endswith("\n")]
    records = [Record(**value) for value in values if value != BEGUN]
    return records, values.count(BEGUN) - len(records)


def _describe(record: Record, headers: Mapping[str, str], body: bytes) -> None:
    record.session = headers.get(SESSION_HEADER, "")
    record.agent = headers.get(AGENT_HEADER, "")
    record.betas = [beta.strip() for beta in headers.get("anthropic-beta", "").split(",") if beta]
    record.retry = headers.get("x-stainless-retry-count", "")
    record.digest = sha256(body).hexdigest()
    try:
        asked: dict[str, Any] = json.loads(body)
    except ValueError:
        return
    messages = asked.get("messages", [])
    record.stream = asked.get("stream", False)
    record.max_tokens = asked.get("max_tokens", 0)
    record.n_messages = len(messages)
    record.n_system = sum(message["role"] == "system" for message in messages)
    content = messages[0]["content"] if messages else []
    record.n_opening = 1 if isinstance(content, str) else len(content)
    record.tools = [tool["name"] for tool in asked.get("tools", [])]


def _n_common(left: list[int], right: list[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))

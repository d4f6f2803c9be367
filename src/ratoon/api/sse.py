"""Stream events on the wire: server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ratoon.api.errors import as_ratoon_error, error_body
from ratoon.api.service import Service
from ratoon.api.stream import WireEvent

# JSON lets these stand as they are, but some clients break lines at them.
_LINE_BREAKS = {c: f"\\u{c:04x}" for c in (0x85, 0x2028, 0x2029)}


def encode_event(event: WireEvent) -> bytes:
    """The ``event:`` line is not optional: clients skip records without one."""
    data = json.dumps(event, ensure_ascii=False, separators=(",", ":")).translate(_LINE_BREAKS)
    return f"event: {event['type']}\ndata: {data}\n\n".encode()


class EventStream(Response):
    """Sends each batch of events as it comes and closes their source, however the response ends.

    Once the status line is out an error can only be told as an ``error`` event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: list[WireEvent],
        batches: AsyncGenerator[list[WireEvent]],
        service: Service,
        request_id: str,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._first = first
        self._batches = batches
        self._service = service
        self._request_id = request_id
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        with suppress(OSError, ClientDisconnect):
            async with aclosing(self._batches):
                await send(start)
                async for chunk in self._chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def _chunks(self) -> AsyncGenerator[bytes]:
        yield _encode(self._first)
        try:
            async for batch in self._batches:
                yield _encode(batch)
        except ClientDisconnect:
            raise
        except Exception as bug:
            error = as_ratoon_error(bug)
            self._service.metrics.count_error(error.kind)
            body = error_body(error.kind, str(error), self._request_id, error.code)
            yield encode_event(body)


def _encode(batch: list[WireEvent]) -> bytes:
    return b"".join(map(encode_event, batch))

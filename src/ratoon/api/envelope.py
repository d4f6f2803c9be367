"""The outermost ASGI layer: every request has an id and gets an answer, whatever breaks inside."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratoon.api.errors import as_ratoon_error, error_response
from ratoon.api.ids import new_id
from ratoon.api.service import Service


class Envelope:
    """Names the request in the ``request-id`` header; turns a bug into a 500 in the usual shape.

    Left to the server, a bug would also cost the client its connection.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request_id = new_id("req")
        scope.setdefault("state", {})["request_id"] = request_id
        has_started = False

        async def send_named(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message).setdefault("request-id", request_id)
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception as bug:
            if has_started:
                raise
            answer = error_response(as_ratoon_error(bug), self._service, request_id)
            await answer(scope, receive, send)

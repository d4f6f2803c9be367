"""The ASGI layer that asks for the API key."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ratoon.api.errors import error_response
from ratoon.api.service import Service
from ratoon.errors import AuthenticationFailed

OPEN_PATHS = frozenset({"/health"})


class ApiKey:
    """Lets a request in that carries the key; ``HEAD`` and the open paths need none."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_open(scope):
            try:
                self._check(Headers(scope=scope))
            except AuthenticationFailed as error:
                refusal = error_response(error, self._service, scope["state"]["request_id"])
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        no_key = self._service.settings.api_key is None
        return no_key or scope["method"] == "HEAD" or scope["path"] in OPEN_PATHS

    def _check(self, headers: Headers) -> None:
        given = _given_keys(headers)
        if not given:
            raise AuthenticationFailed("x-api-key header is required")
        key = (self._service.settings.api_key or "").encode()
        if not any([hmac.compare_digest(candidate, key) for candidate in given]):
            raise AuthenticationFailed("invalid x-api-key")


def _given_keys(headers: Headers) -> list[bytes]:
    """Clients send one of the two headers, or both with the key in either."""
    keys = [headers.get("x-api-key", "")]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        keys.append(token.strip())
    return [key.encode("latin-1") for key in keys if key]

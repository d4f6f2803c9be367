"""The ASGI layer that asks for the API key, and counts how often each is used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ratoon.api.errors import error_response
from ratoon.api.limits import SlidingWindow, Verdict
from ratoon.api.service import Service
from ratoon.errors import AuthenticationFailed, PermissionDenied, RateLimited, RatoonError
from ratoon.keys import Key, Role

OPEN_PATHS = frozenset({"/health"})
PROBED_PATHS = frozenset({"/", "/api/hello"})  # by clients that have not read their key yet
ADMIN_PATHS = ("/admin/", "/metrics")
MAX_FAILURES = 30  # wrong keys from one address in a minute


class ApiKey:
    """Lets a request in that carries a key, as that key's tenant; probes and the open paths need
    none. What concerns the whole server is for admins."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._window = SlidingWindow()
        self._failures = SlidingWindow()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope):
            return await self._app(scope, receive, send)
        verdict: Verdict | None = None
        try:
            key = self._key(scope)
            _check_role(key, scope)
            scope["state"]["tenant"] = key.name
            if key.per_minute:
                verdict = self._window.take(key.name, key.per_minute, self._service.clock())
                if not verdict.is_allowed:
                    raise RateLimited(
                        f"This request would exceed your limit of {key.per_minute} requests per "
                        "minute"
                    )
        except RatoonError as error:
            refusal = error_response(error, self._service, scope["state"]["request_id"])
            return await refusal(scope, receive, _telling(send, verdict))
        answer = _telling(send, verdict)
        if not self._service.keys.is_inner(key):
            answer = self._counting(answer, key)
        await self._app(scope, receive, answer)

    def _is_open(self, scope: Scope) -> bool:
        is_open = self._service.keys.is_open
        is_probe = scope["method"] == "HEAD" and scope["path"] in PROBED_PATHS
        return is_open or is_probe or scope["path"] in OPEN_PATHS

    def _key(self, scope: Scope) -> Key:
        """The key that the request carries. Who tries many wrong ones is told to wait."""
        given = _given_keys(Headers(scope=scope))
        found = [key for secret in given if (key := self._service.keys.find(secret))]
        if found:
            return found[0]
        address = (scope.get("client") or ("",))[0]
        if not self._failures.take(address, MAX_FAILURES, self._service.clock()).is_allowed:
            raise RateLimited("Too many requests with a wrong key")
        raise AuthenticationFailed("invalid x-api-key" if given else "x-api-key header is required")

    def _counting(self, send: Send, key: Key) -> Send:
        """Counts the request under the key's name once its answer begins."""
        began_s = self._service.clock()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                seconds = self._service.clock() - began_s
                self._service.metrics.observe_key(key.name, message["status"], seconds)
            await send(message)

        return counted


def _check_role(key: Key, scope: Scope) -> None:
    is_change = scope["path"] == "/think" and scope["method"] == "POST"
    if key.role is not Role.ADMIN and (is_change or scope["path"].startswith(ADMIN_PATHS)):
        raise PermissionDenied("this key has no admin role")


def _telling(send: Send, verdict: Verdict | None) -> Send:
    """Adds how much of the limit is left, as Anthropic tells it and as most others do."""
    if verdict is None:
        return send

    async def told(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            reset = datetime.now(UTC) + timedelta(seconds=verdict.reset_s)
            headers["anthropic-ratelimit-requests-limit"] = str(verdict.limit)
            headers["anthropic-ratelimit-requests-remaining"] = str(verdict.remaining)
            headers["anthropic-ratelimit-requests-reset"] = reset.strftime("%Y-%m-%dT%H:%M:%SZ")
            headers["x-ratelimit-limit"] = str(verdict.limit)
            headers["x-ratelimit-remaining"] = str(verdict.remaining)
            headers["x-ratelimit-reset"] = str(verdict.reset_s)
            if message["status"] == HTTPStatus.TOO_MANY_REQUESTS:
                headers["retry-after"] = str(verdict.reset_s)
        await send(message)

    return told


def _given_keys(headers: Headers) -> list[bytes]:
    """Clients send one of the two headers, or both with the key in either."""
    keys = [headers.get("x-api-key", "")]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        keys.append(token.strip())
    return [key.encode("latin-1") for key in keys if key]

"""The ASGI layer that keeps web pages away from a server without a key.

Such a server listens on loopback only, but a browser on the same machine would still carry a page's
requests to it: directly (the page's address is in ``Origin``) or under a name that the page's owner
points at 127.0.0.1 (that name is in ``Host``).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ratoon.api.errors import error_response
from ratoon.api.service import Service
from ratoon.config import is_loopback
from ratoon.errors import PermissionDenied


class LocalOnly:
    """Refuses other hosts' names and origins while no key is set."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._service.keys.is_open:
            headers = Headers(scope=scope)
            for name, value in (("Host", headers.get("host")), ("Origin", headers.get("origin"))):
                if value is not None and not _is_local(value):
                    error = PermissionDenied(f"{name} is not this machine, and no API key is set")
                    refusal = error_response(error, self._service, scope["state"]["request_id"])
                    return await refusal(scope, receive, send)
        await self._app(scope, receive, send)


def _is_local(value: str) -> bool:
    """Whether a ``host:port`` or an origin names this machine."""
    try:
        host = urlsplit(value if "//" in value else f"//{value}").hostname
    except ValueError:
        return False
    return host is not None and is_loopback(host)

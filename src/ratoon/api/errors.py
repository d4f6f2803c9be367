"""Exceptions to Anthropic's error shape: the one place where they meet HTTP."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.service import Service
from ratoon.errors import InternalError, RatoonError

logger = logging.getLogger(__name__)

_HTTP_KINDS = {404: "not_found_error"}
_BUSY = (429, 529)


def error_body(kind: str, message: str, request_id: str, code: str | None = None) -> dict[str, Any]:
    error: dict[str, Any] = {"type": kind, "message": message}
    if code is not None:
        error["details"] = {"error_code": code}
    return {"type": "error", "error": error, "request_id": request_id}


def error_response(error: RatoonError, service: Service, request_id: str) -> Response:
    service.metrics.count_error(error.kind)
    headers = {"request-id": request_id}
    if error.status in _BUSY:
        headers["retry-after"] = str(service.settings.retry_after_s)
    body = error_body(error.kind, str(error), request_id, error.code)
    return JSONResponse(body, error.status, headers)


def as_ratoon_error(error: Exception) -> RatoonError:
    """A bug's message may hold anything, so the client gets a fixed one."""
    if isinstance(error, RatoonError):
        return error
    logger.error("request failed", exc_info=error)
    return InternalError("Internal server error")


async def on_ratoon_error(request: Request, error: Exception) -> Response:
    return error_response(
        as_ratoon_error(error), request.app.state.service, request.state.request_id
    )


async def on_http_error(request: Request, error: Exception) -> Response:
    """No such route or method."""
    assert isinstance(error, HTTPException)
    kind = _HTTP_KINDS.get(error.status_code, "invalid_request_error")
    request.app.state.service.metrics.count_error(kind)
    message = f"{error.detail}: {request.method} {request.url.path}"
    body = error_body(kind, message, request.state.request_id)
    return JSONResponse(body, error.status_code, error.headers)


async def on_hang_up(request: Request, error: Exception) -> Response:
    """Nobody reads it; the status is for the access log."""
    return Response(status_code=499)

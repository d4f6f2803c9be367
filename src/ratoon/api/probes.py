"""Small routes that tell about the server itself."""

from __future__ import annotations

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.metrics import CONTENT_TYPE


async def hello(request: Request) -> Response:
    """Clients warm their connection here."""
    return Response(status_code=200)


async def health(request: Request) -> Response:
    engine = request.app.state.service.engine
    return JSONResponse({"status": "ok", "model": engine.model_name, "n_ctx": engine.n_ctx})


async def metrics(request: Request) -> Response:
    service = request.app.state.service
    view = await to_thread.run_sync(service.engine.inspect)
    service.metrics.set_state(view)
    if service.replies is not None:
        service.metrics.set_replies(len(service.replies), service.replies.n_bytes)
    return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})

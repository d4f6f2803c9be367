"""The HTTP edge's table of contents."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Lifespan

from ratoon.api.auth import ApiKey
from ratoon.api.envelope import Envelope
from ratoon.api.errors import on_hang_up, on_http_error, on_ratoon_error
from ratoon.api.local import LocalOnly
from ratoon.api.messages import count_tokens, create_message
from ratoon.api.models import get_model, list_models
from ratoon.api.probes import health, hello, metrics
from ratoon.api.service import Service
from ratoon.api.think import get_think, set_think
from ratoon.errors import RatoonError


def routes() -> list[Route]:
    return [
        Route("/v1/messages", create_message, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", get_model, methods=["GET"]),
        Route("/", hello, methods=["HEAD"]),
        Route("/api/hello", hello, methods=["GET"]),
        Route("/think", get_think, methods=["GET"]),
        Route("/think", set_think, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def create_app(service: Service, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """The application. Whoever builds the service starts and stops its engine."""
    app = FastAPI(
        title="Ratoon",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[
            Middleware(Envelope, service=service),
            Middleware(LocalOnly, service=service),
            Middleware(ApiKey, service=service),
        ],
        exception_handlers={
            RatoonError: on_ratoon_error,
            HTTPException: on_http_error,
            ClientDisconnect: on_hang_up,
        },
    )
    app.state.service = service
    app.router.routes.extend(routes())
    return app

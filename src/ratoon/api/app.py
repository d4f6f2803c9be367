"""The HTTP edge's table of contents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from ratoon.api.admin import evict, get_memory, get_usage
from ratoon.api.auth import ApiKey
from ratoon.api.domains import (
    append_tools,
    get_domain,
    list_domains,
    register_tools,
    remove_domain,
)
from ratoon.api.envelope import Envelope
from ratoon.api.errors import on_hang_up, on_http_error, on_ratoon_error
from ratoon.api.llm_config import list_llms, remove_llm, set_llm
from ratoon.api.local import LocalOnly
from ratoon.api.messages import count_tokens, create_message
from ratoon.api.models import get_model, list_models
from ratoon.api.probes import health, hello, metrics
from ratoon.api.query import query
from ratoon.api.route import route, route_batch
from ratoon.api.service import Service
from ratoon.api.think import get_think, set_think
from ratoon.api.v2 import (
    list_tool_sets,
    query_tool_set,
    register_tool_set,
    remove_tool_set,
    run_pipeline,
)
from ratoon.errors import RatoonError


def routes() -> list[Route]:
    return [
        Route("/v1/messages", create_message, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", get_model, methods=["GET"]),
        Route("/", hello, methods=["HEAD"]),
        Route("/api/hello", hello, methods=["GET"]),
        Route("/domains", list_domains, methods=["GET"]),
        Route("/domains/{domain_id}", get_domain, methods=["GET"]),
        Route("/domains/{domain_id}", remove_domain, methods=["DELETE"]),
        Route("/domains/{domain_id}/tools", register_tools, methods=["POST"]),
        Route("/domains/{domain_id}/tools", append_tools, methods=["PATCH"]),
        Route("/route", route, methods=["POST"]),
        Route("/route/batch", route_batch, methods=["POST"]),
        Route("/query", query, methods=["POST"]),
        Route("/v2/tools", register_tool_set, methods=["POST"]),
        Route("/v2/tools/{tool_id}", remove_tool_set, methods=["DELETE"]),
        Route("/v2/registry", list_tool_sets, methods=["GET"]),
        Route("/v2/query", query_tool_set, methods=["POST"]),
        Route("/v2/pipeline", run_pipeline, methods=["POST"]),
        Route("/admin/metrics", get_usage, methods=["GET"]),
        Route("/admin/memory", get_memory, methods=["GET"]),
        Route("/admin/evict", evict, methods=["POST"]),
        Route("/admin/llm-config", list_llms, methods=["GET"]),
        Route("/admin/llm-config/{domain_id}", set_llm, methods=["POST"]),
        Route("/admin/llm-config/{domain_id}", remove_llm, methods=["DELETE"]),
        Route("/think", get_think, methods=["GET"]),
        Route("/think", set_think, methods=["POST"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def create_app(service: Service) -> FastAPI:
    """The application. Whoever builds the service starts and stops its engine."""
    app = FastAPI(
        title="Ratoon",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
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


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Domains of earlier servers are there as soon as this one answers."""
    router = app.state.service.router
    if router is not None:
        await router.open()
    yield
    if router is not None:
        await router.close()

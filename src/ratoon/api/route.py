"""``POST /route``: which tool serves a query."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictBool, StrictInt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.body import read_json
from ratoon.api.domains import router_of, tenant_of
from ratoon.api.hang_up import while_connected
from ratoon.errors import InvalidRequest, RatoonError
from ratoon.router.decide import Decision
from ratoon.router.router import Arguments, Router
from ratoon.wire import Items

MAX_QUERY = 1 << 20  # characters; what fits the model's window is checked in tokens
MAX_BATCH = 256
MAX_AT_ONCE = 16  # queries of a batch; others have a turn between them
N_CANDIDATES = 5

Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY)]


class Options(BaseModel):
    """``tool_id`` is what clients of an older service call a domain; they always get arguments,
    and ``selections``."""

    domain_id: str | None = None
    tool_id: str | None = None
    top_k: StrictInt = Field(N_CANDIDATES, ge=1)
    include_schema: StrictBool = False
    include_arguments: StrictBool = False
    max_new_tokens: int | None = Field(None, ge=1, le=2048)  # of the arguments

    @property
    def domain(self) -> str:
        """Raises InvalidRequest."""
        name = self.domain_id if self.domain_id is not None else self.tool_id
        if name is None:
            raise InvalidRequest("domain_id: Field required")
        return name


class RouteRequest(Options):
    query: Query


class BatchRequest(Options):
    queries: Items[Query] = Field(min_length=1, max_length=MAX_BATCH)


async def route(http: Request) -> Response:
    began_s = time.perf_counter()
    asked = await read_json(http, RouteRequest)
    work = _route(router_of(http), tenant_of(http), asked, asked.query, began_s)
    return JSONResponse(await while_connected(http, work))


async def route_batch(http: Request) -> Response:
    """All queries side by side; each has its own answer or error."""
    began_s = time.perf_counter()
    asked = await read_json(http, BatchRequest)
    router, tenant = router_of(http), tenant_of(http)
    router.domains.get(tenant, asked.domain)

    async def all_of_them() -> list[dict[str, Any]]:
        gate = asyncio.Semaphore(MAX_AT_ONCE)

        async def one(query: str) -> dict[str, Any]:
            async with gate:
                try:
                    now_s = time.perf_counter()
                    return await _route(router, tenant, asked, query, now_s, router.crowd)
                except RatoonError as error:
                    return {"error": {"type": error.kind, "message": str(error)}}

        return list(await asyncio.gather(*map(one, asked.queries)))

    results = await while_connected(http, all_of_them())
    total_ms = ms(time.perf_counter() - began_s)
    return JSONResponse({"results": results, "timings": {"total_ms": total_ms}})


async def _route(
    router: Router,
    tenant: str,
    asked: Options,
    query: str,
    began_s: float,
    crowd: asyncio.Semaphore | None = None,
) -> dict[str, Any]:
    decision = await router.route(tenant, asked.domain, query, crowd)
    name, confidence = decision.best
    arguments: Arguments | None = None
    if (asked.include_arguments or asked.tool_id) and name is not None:
        arguments = await router.arguments(decision, name, asked.max_new_tokens, crowd)
    answer: dict[str, Any] = {
        "domain_id": asked.domain,
        "tool_name": name,
        "confidence": confidence,
        "top_candidates": [
            {"name": each, "probability": share} for each, share in decision.ranked[: asked.top_k]
        ],
    }
    if asked.tool_id is not None:
        answer |= _older(asked.tool_id, name, arguments)
    if asked.include_arguments:
        answer["arguments"] = arguments.value if arguments else None
    if asked.include_schema:
        answer["tool_schema"] = (
            None if name is None else decision.domain.catalogue.tool(name).source
        )
    answer["cached_tokens"] = decision.n_cached
    answer["prompt_tokens"] = decision.n_prompt
    timings = _timings(decision, arguments, time.perf_counter() - began_s)
    if asked.tool_id is not None:
        timings |= {"total_ms": timings["route_ms"], "cache_hit": decision.is_hit}
    answer["timings"] = timings
    return answer


def _older(tool_id: str, name: str | None, arguments: Arguments | None) -> dict[str, Any]:
    value = (arguments.value if arguments else None) or {}
    chosen = [] if name is None else [{"tool_name": name, "arguments": value}]
    raw = "" if arguments is None else f"{name}\n{arguments.text}"
    return {"tool_id": tool_id, "selections": chosen, "raw_response": raw}


def _timings(decision: Decision, arguments: Arguments | None, total_s: float) -> dict[str, float]:
    """Milliseconds; all but ``route_ms`` add up to it."""
    spent = decision.spent
    parts = {
        "render_ms": spent.render_s,
        "first_token_ms": spent.first_s,
        "names_ms": spent.names_s,
        "arguments_ms": arguments.seconds if arguments else 0.0,
    }
    parts["other_ms"] = total_s - sum(parts.values())
    return {"route_ms": ms(total_s)} | {name: ms(value) for name, value in parts.items()}


def ms(seconds: float) -> float:
    """As answers tell times: in milliseconds."""
    return round(1000 * seconds, 3)

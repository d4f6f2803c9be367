"""``/v2``: the routes and field names of an older tool-caching service, for its clients.

A tool set is a domain. Where that service could make things up, this does not: an empty choice
calls nothing, and ``confidence`` is a probability.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from anyio import to_thread
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.body import read_json
from ratoon.api.domains import group_key, is_kept, megabytes, router_of, tenant_of
from ratoon.api.hang_up import while_connected
from ratoon.api.query import Headers, desk_of
from ratoon.api.route import Query, ms
from ratoon.errors import InternalError
from ratoon.router.catalogue import Catalogue, check_id, parse_tools
from ratoon.router.credentials import Wish
from ratoon.router.domains import Domain, Status
from ratoon.router.execute import MOCK
from ratoon.router.handover import Handover, Options, hand_over

N_NAMES = 10  # of a tool set's tools in the registry


class ToolsRequest(BaseModel):
    tool_id: str
    tools: Any


class QueryRequest(BaseModel):
    tool_id: str
    query: Query
    max_new_tokens: int = Field(256, ge=1, le=2048)


class PipelineRequest(QueryRequest):
    llm_format: Literal["claude", "openai", "raw"] = "claude"
    tool_executor: str = MOCK
    llm_api_key: str | None = Field(None, repr=False)
    llm_model: str | None = None
    llm_system_prompt: str | None = None
    llm_base_url: str | None = None
    llm_headers: Headers | None = Field(None, repr=False)


async def register_tool_set(http: Request) -> Response:
    router, tenant = router_of(http), tenant_of(http)
    asked = await read_json(http, ToolsRequest)
    tool_id = check_id(asked.tool_id, "tool_id")
    catalogue = Catalogue(await to_thread.run_sync(parse_tools, asked.tools))
    domain = await router.register(tenant, tool_id, catalogue)
    await router.finish(domain)
    if domain.status is Status.FAILED:
        raise InternalError(f"the tools were not computed: {domain.error}")
    is_new = domain.n_forwarded > 1
    return JSONResponse(
        {
            "status": "compiled" if is_new else "already_cached",
            "tool_id": domain.id,
            "num_tools": len(catalogue.tools),
            "cache_hash": group_key(domain),
            "compile_ms": round(1000 * domain.prefill_s, 1),
            "cache_size_mb": megabytes(http, domain),
            "prefix_tokens": len(domain.prompt.prefix),
            "from_disk": domain.layer == "disk",
        }
    )


async def list_tool_sets(http: Request) -> Response:
    domains = router_of(http).domains.of(tenant_of(http))
    sizes = [megabytes(http, domain) for domain in domains]
    return JSONResponse(
        {
            "num_tool_sets": len(domains),
            "tool_sets": await to_thread.run_sync(lambda: [_shown(http, each) for each in domains]),
            "total_cache_memory_mb": round(sum(sizes), 3),
        }
    )


async def remove_tool_set(http: Request) -> Response:
    router, tenant = router_of(http), tenant_of(http)
    domain = router.domains.remove(tenant, check_id(http.path_params["tool_id"], "tool_id"))
    return JSONResponse(
        {
            "status": "removed",
            "tool_id": domain.id,
            "tools_removed": len(domain.catalogue.tools),
            "cache_evicted": not router.domains.holds(tenant, domain.prompt.digest),
        }
    )


async def query_tool_set(http: Request) -> Response:
    """Which tool, as text."""
    began_s = time.perf_counter()
    asked = await read_json(http, QueryRequest)
    options = Options(
        asked.tool_id, asked.query, has_executor=False, max_arguments=asked.max_new_tokens
    )
    found = await while_connected(http, hand_over(desk_of(http), tenant_of(http), options))
    total_ms = ms(time.perf_counter() - began_s)
    return JSONResponse(
        {
            "response": found.text,
            "tool_id": asked.tool_id,
            "cache_hit": found.decision.is_hit,
            "timings": {
                **_route_timings(found),
                "total_ms": total_ms,
                "cache_hit": found.decision.is_hit,
            },
        }
    )


async def run_pipeline(http: Request) -> Response:
    """Route, fill in, execute; then the answer of a language model, if one is configured."""
    began_s = time.perf_counter()
    asked = await read_json(http, PipelineRequest)
    wish = Wish(
        None if asked.llm_api_key is None else _provider(asked.llm_format),
        asked.llm_api_key,
        asked.llm_model,
        asked.llm_base_url,
        asked.llm_headers,
        asked.llm_system_prompt,
    )
    options = Options(
        asked.tool_id,
        asked.query,
        asked.llm_format,
        executor=asked.tool_executor,
        wish=wish,
        max_arguments=asked.max_new_tokens,
    )
    found = await while_connected(http, hand_over(desk_of(http), tenant_of(http), options))
    return JSONResponse(
        {
            "selected_tool": found.name,
            "arguments": found.arguments,
            "tool_result": found.result,
            "llm_context": found.context,
            "llm_response": found.reply,
            "confidence": found.decision.best[1],
            "timings": {
                "route_ms": ms(found.route_s),
                "route_details": _route_timings(found),
                "execute_ms": ms(found.execute_s),
                "llm_ms": ms(found.llm_s),
                "llm_model": found.model or None,
                "llm_usage": found.usage or None,
                "llm_error": found.error or None,
                "total_ms": ms(time.perf_counter() - began_s),
                "cache_hit": found.decision.is_hit,
            },
        }
    )


def _provider(llm_format: str) -> str:
    return "openai" if llm_format == "openai" else "claude"


def _shown(http: Request, domain: Domain) -> dict[str, object]:
    names = [tool.name for tool in domain.catalogue.tools]
    return {
        "tool_id": domain.id,
        "num_tools": len(names),
        "tool_names": names[:N_NAMES],
        "total_tool_count": len(names),
        "group_key": group_key(domain),
        "registered_at": domain.registered_s,
        "last_accessed_at": domain.used_s,
        "query_count": domain.n_queries,
        "cache_in_memory": is_kept(http, domain),
    }


def _route_timings(found: Handover) -> dict[str, float]:
    spent = found.decision.spent
    return {
        "link_ms": ms(spent.render_s),
        "prefill_query_ms": ms(spent.first_s),
        "decode_ms": ms(spent.names_s + found.arguments_s),
    }

"""``/domains``: register tools, and see what is registered."""

from __future__ import annotations

from typing import Any

from anyio import to_thread
from pydantic import BaseModel, StrictBool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.body import read_json
from ratoon.api.service import Service
from ratoon.errors import NotFound
from ratoon.router.catalogue import Catalogue, Tool, check_id, parse_tools
from ratoon.router.domains import Domain, Status
from ratoon.router.router import Router

N_NAMES = 10  # of a domain's tools in the list of all


class Registration(BaseModel):
    """``tools`` in OpenAI's or Anthropic's form. Without ``wait``, the answer comes at once and
    the domain's ``progress`` tells how far it is."""

    tools: Any
    system_prompt: str | None = None
    wait: StrictBool = True


class Addition(BaseModel):
    """Tools to follow those that are there."""

    tools: Any
    wait: StrictBool = True


async def register_tools(http: Request) -> Response:
    router, tenant, domain_id = _named(http)
    asked, tools = await _read(http, Registration)
    catalogue = Catalogue(tools, asked.system_prompt or "")
    domain = await router.register(tenant, domain_id, catalogue)
    return await _registered(http, domain, waits=asked.wait)


async def append_tools(http: Request) -> Response:
    router, tenant, domain_id = _named(http)
    asked, tools = await _read(http, Addition)
    domain = await router.append(tenant, domain_id, tools)
    return await _registered(http, domain, waits=asked.wait)


async def list_domains(http: Request) -> Response:
    domains = router_of(http).domains.of(tenant_of(http))
    shown = [_shown(http, domain, N_NAMES) for domain in domains]
    return JSONResponse({"num_domains": len(shown), "domains": shown})


async def get_domain(http: Request) -> Response:
    router, tenant, domain_id = _named(http)
    domain = router.domains.get(tenant, domain_id)
    tools = [tool.source for tool in domain.catalogue.tools]
    about = {"system_prompt": domain.catalogue.system_prompt, "tools": tools}
    return JSONResponse(_shown(http, domain) | about)


async def remove_domain(http: Request) -> Response:
    router, tenant, domain_id = _named(http)
    domain = router.domains.remove(tenant, domain_id)
    n_tools = len(domain.catalogue.tools)
    return JSONResponse({"status": "removed", "domain_id": domain.id, "tools_removed": n_tools})


def router_of(http: Request) -> Router:
    service: Service = http.app.state.service
    if service.router is None:
        raise NotFound("this server has no router")
    return service.router


def tenant_of(http: Request) -> str:
    """Whose domains the request may use."""
    tenant: str = getattr(http.state, "tenant", "")
    return tenant


def megabytes(http: Request, domain: Domain) -> float:
    """What the prefix takes as a saved state, about."""
    service: Service = http.app.state.service
    return round(len(domain.prompt.prefix) * service.engine.bytes_per_token / 1e6, 3)


def is_kept(http: Request, domain: Domain) -> bool:
    """Whether some tier has the prefix; its last token may be computed anew. Waits for the
    engine's step."""
    service: Service = http.app.state.service
    prefix = domain.prompt.prefix
    return service.engine.match_length(prefix) >= len(prefix) - 1


def group_key(domain: Domain) -> str:
    """What an older service calls the state that equal catalogues share."""
    return domain.prompt.digest[:16]


def _named(http: Request) -> tuple[Router, str, str]:
    return router_of(http), tenant_of(http), check_id(http.path_params["domain_id"])


async def _read(http: Request, kind: type[Any]) -> tuple[Any, tuple[Tool, ...]]:
    asked = await read_json(http, kind)
    return asked, await to_thread.run_sync(parse_tools, asked.tools)


async def _registered(http: Request, domain: Domain, *, waits: bool) -> Response:
    """A client that leaves stops waiting; the registration goes on."""
    if waits:
        await router_of(http).finish(domain)
    status = 202 if domain.status is Status.REGISTERING else 200
    return JSONResponse(_shown(http, domain, N_NAMES), status)


def _shown(http: Request, domain: Domain, n_names: int | None = None) -> dict[str, object]:
    tools = domain.catalogue.tools
    shown: dict[str, object] = {
        "domain_id": domain.id,
        "status": "registered" if domain.status is Status.READY else domain.status.value,
        "num_tools": len(tools),
        "tool_names": [tool.name for tool in tools[:n_names]],
        "prefix_tokens": len(domain.prompt.prefix),
        "forwarded_tokens": domain.n_forwarded,
        "state_size_mb": megabytes(http, domain),
        "progress": round(domain.progress, 4),
        "prefill_ms": round(1000 * domain.prefill_s, 1),
        "query_count": domain.n_queries,
        "registered_at": domain.registered_s,
        "last_used_at": domain.used_s,
    }
    return shown | ({"error": domain.error} if domain.error else {})

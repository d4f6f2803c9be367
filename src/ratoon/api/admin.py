"""``/admin``: what is used by whom, and how much memory it takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.domains import group_key, is_kept, megabytes
from ratoon.api.service import Service
from ratoon.metrics import KeyUse
from ratoon.router.domains import Domain


async def get_usage(http: Request) -> Response:
    """Requests by key, under the key's name."""
    service: Service = http.app.state.service
    uses = service.metrics.key_uses
    per_key = {} if service.keys.is_open else {name: _shown(use) for name, use in uses.items()}
    return JSONResponse(
        {
            "auth_enabled": not service.keys.is_open,
            "num_keys": len(per_key),
            **_shown(_total(uses.values())),
            "per_key": per_key,
        }
    )


async def get_memory(http: Request) -> Response:
    """Bytes of saved states, cells of the device, and the tool sets that some tier holds."""
    service: Service = http.app.state.service
    domains = service.router.domains.all() if service.router is not None else []
    entries = await to_thread.run_sync(_entries, http, domains)
    figures: Any = service.engine.inspect()["cache"]
    most = figures["host_max_bytes"]
    return JSONResponse(
        {
            "total_cache_mb": round(figures["host_bytes"] / 1e6, 3),
            "max_cache_mb": round(most / 1e6, 3),
            "utilization_pct": round(100 * figures["host_bytes"] / most, 2) if most else 0.0,
            "num_entries": len(entries),
            "entries": entries,
            "figures": figures,
        }
    )


async def evict(http: Request) -> Response:
    """Give up what no running request needs; what is on disk stays."""
    service: Service = http.app.state.service
    n_evicted = service.engine.evict()
    figures: Any = service.engine.inspect()["cache"]
    remaining = round(figures["host_bytes"] / 1e6, 3)
    return JSONResponse({"evicted": n_evicted, "remaining_mb": remaining})


def _total(uses: Collection[KeyUse]) -> KeyUse:
    return KeyUse(
        sum(use.n_requests for use in uses),
        sum(use.n_errors for use in uses),
        sum(use.seconds for use in uses),
        sum(use.n_hits for use in uses),
        sum(use.n_misses for use in uses),
    )


def _entries(http: Request, domains: Sequence[Domain]) -> dict[str, dict[str, Any]]:
    """By what equal tool sets, which share a state, have in common; the one used last counts."""
    return {
        group_key(domain): {
            "size_mb": megabytes(http, domain),
            "tool_count": len(domain.catalogue.tools),
            "last_accessed": domain.used_s,
        }
        for domain in domains
        if is_kept(http, domain)
    }


def _shown(use: KeyUse) -> dict[str, Any]:
    total_ms = 1000 * use.seconds
    return {
        "total_requests": use.n_requests,
        "cache_hits": use.n_hits,
        "cache_misses": use.n_misses,
        "errors": use.n_errors,
        "total_latency_ms": round(total_ms, 3),
        "avg_latency_ms": round(total_ms / use.n_requests, 3) if use.n_requests else 0.0,
    }

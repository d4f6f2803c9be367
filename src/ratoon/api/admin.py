"""``/admin``: what is used by whom, and how much memory it takes."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.service import Service
from ratoon.metrics import KeyUse


async def get_usage(http: Request) -> Response:
    """Requests by key, under the key's name."""
    service: Service = http.app.state.service
    uses = service.metrics.key_uses
    totals = KeyUse(
        sum(use.n_requests for use in uses.values()),
        sum(use.n_errors for use in uses.values()),
        sum(use.seconds for use in uses.values()),
    )
    return JSONResponse(
        {
            "auth_enabled": not service.keys.is_open,
            "num_keys": len(uses),
            **_shown(totals),
            "per_key": {name: _shown(use) for name, use in uses.items()},
        }
    )


async def get_memory(http: Request) -> Response:
    """Bytes of saved states, and cells of the device."""
    service: Service = http.app.state.service
    figures: Any = service.engine.inspect()["cache"]
    most = figures["host_max_bytes"]
    return JSONResponse(
        {
            "total_cache_mb": round(figures["host_bytes"] / 1e6, 3),
            "max_cache_mb": round(most / 1e6, 3),
            "utilization_pct": round(100 * figures["host_bytes"] / most, 2) if most else 0.0,
            "num_entries": figures["host_snapshots"],
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


def _shown(use: KeyUse) -> dict[str, Any]:
    total_ms = 1000 * use.seconds
    return {
        "total_requests": use.n_requests,
        "errors": use.n_errors,
        "total_latency_ms": round(total_ms, 3),
        "avg_latency_ms": round(total_ms / use.n_requests, 3) if use.n_requests else 0.0,
    }

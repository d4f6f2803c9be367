"""Requests as the client sends them, and how their answers are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from ratoon.client.results import (
    Domain,
    PipelineResult,
    RouteResult,
    domain_of,
    domains_of,
    pipeline_of,
    read,
    route_of,
    routes_of,
)

DEFAULT_URL = "http://127.0.0.1:8788"
REGISTER_TIMEOUT_S = 600.0  # a large catalogue on a slow machine
MAX_RETRIES = 2
MAX_PAUSE_S = 30.0
_BUSY = (429, 529)

Tools = Sequence[Mapping[str, Any]]
Told = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and what its answer is told as. ``is_safe``: it may be sent again, as it changes
    nothing."""

    method: str
    path: str
    parse: Callable[[dict[str, Any]], T]
    body: Told | None = None
    is_safe: bool = True
    timeout_s: float | None = None

    def result(self, answer: httpx.Response) -> T:
        """Raises ClientError for an error."""
        return self.parse(read(answer))

    def pause_s(self, answer: httpx.Response, n_tries: int) -> float | None:
        """How long to wait, in seconds, before it is sent once more: the server was busy, and
        sending it again does no harm. None: the answer counts."""
        if not (self.is_safe and answer.status_code in _BUSY and n_tries < MAX_RETRIES):
            return None
        try:
            return min(MAX_PAUSE_S, float(answer.headers["retry-after"]))
        except (KeyError, ValueError):
            return min(MAX_PAUSE_S, 0.5 * 2.0**n_tries)


class Api:
    """Every request there is."""

    @staticmethod
    def health() -> Call[dict[str, Any]]:
        return Call("GET", "/health", dict)

    @staticmethod
    def register(
        domain_id: str, tools: Tools, system_prompt: str | None, wait: bool
    ) -> Call[Domain]:
        body = {"tools": list(tools), "system_prompt": system_prompt, "wait": wait}
        return _slow("POST", f"/domains/{domain_id}/tools", domain_of, body)

    @staticmethod
    def append(domain_id: str, tools: Tools, wait: bool) -> Call[Domain]:
        body = {"tools": list(tools), "wait": wait}
        return _slow("PATCH", f"/domains/{domain_id}/tools", domain_of, body)

    @staticmethod
    def domain(domain_id: str) -> Call[Domain]:
        return Call("GET", f"/domains/{domain_id}", domain_of)

    @staticmethod
    def domains() -> Call[list[Domain]]:
        return Call("GET", "/domains", domains_of)

    @staticmethod
    def remove(domain_id: str) -> Call[None]:
        return Call("DELETE", f"/domains/{domain_id}", _nothing, is_safe=False)

    @staticmethod
    def route(domain_id: str, query: str, options: Told) -> Call[RouteResult]:
        body = {"domain_id": domain_id, "query": query, **options}
        return Call("POST", "/route", route_of, body)

    @staticmethod
    def batch(domain_id: str, queries: Sequence[str], options: Told) -> Call[list[RouteResult]]:
        body = {"domain_id": domain_id, "queries": list(queries), **options}
        return Call("POST", "/route/batch", routes_of, body, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def query(domain_id: str, query: str, options: Told) -> Call[PipelineResult]:
        body = {"domain_id": domain_id, "query": query, **_given(options)}
        return _slow("POST", "/query", pipeline_of, body)

    @staticmethod
    def configure(domain_id: str, config: Told) -> Call[dict[str, Any]]:
        path = f"/admin/llm-config/{domain_id}"
        return Call("POST", path, dict, _given(config), is_safe=False)

    @staticmethod
    def configs() -> Call[dict[str, Any]]:
        return Call("GET", "/admin/llm-config", lambda told: dict(told["configs"]))

    @staticmethod
    def forget(domain_id: str) -> Call[None]:
        return Call("DELETE", f"/admin/llm-config/{domain_id}", _nothing, is_safe=False)


def connection(base_url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """What an HTTP client is made with."""
    headers = {"x-api-key": api_key} if api_key else {}
    return {"base_url": base_url, "headers": headers, "timeout": timeout}


def _slow(method: str, path: str, parse: Callable[[dict[str, Any]], T], body: Told) -> Call[T]:
    """It changes something, and may take long."""
    return Call(method, path, parse, body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)


def _given(options: Told) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _nothing(_: dict[str, Any]) -> None:
    return None

"""Requests as the client sends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8788"
REGISTER_TIMEOUT_S = 600.0  # a large catalogue on a slow machine
MAX_RETRIES = 2
MAX_PAUSE_S = 30.0
_BUSY = (429, 529)

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Call:
    """One request. ``is_safe``: it may be sent again, as it changes nothing."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    is_safe: bool = True
    timeout_s: float | None = None


class Api:
    """The requests that take more than a path."""

    @staticmethod
    def register(domain_id: str, tools: Tools, system_prompt: str | None, wait: bool) -> Call:
        body = {"tools": list(tools), "system_prompt": system_prompt, "wait": wait}
        path = f"/domains/{domain_id}/tools"
        return Call("POST", path, body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def append(domain_id: str, tools: Tools, wait: bool) -> Call:
        body = {"tools": list(tools), "wait": wait}
        path = f"/domains/{domain_id}/tools"
        return Call("PATCH", path, body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def route(domain_id: str, query: str, options: Mapping[str, Any]) -> Call:
        return Call("POST", "/route", {"domain_id": domain_id, "query": query, **options})

    @staticmethod
    def batch(domain_id: str, queries: Sequence[str], options: Mapping[str, Any]) -> Call:
        body = {"domain_id": domain_id, "queries": list(queries), **options}
        return Call("POST", "/route/batch", body, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def query(domain_id: str, query: str, options: Mapping[str, Any]) -> Call:
        given = {name: value for name, value in options.items() if value is not None}
        body = {"domain_id": domain_id, "query": query, **given}
        return Call("POST", "/query", body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def configure(domain_id: str, config: Mapping[str, Any]) -> Call:
        given = {name: value for name, value in config.items() if value is not None}
        return Call("POST", f"/admin/llm-config/{domain_id}", given, is_safe=False)


def is_retried(call: Call, answer: httpx.Response, n_tries: int) -> bool:
    """Whether to send it once more: the server was busy, and sending it again does no harm."""
    return call.is_safe and answer.status_code in _BUSY and n_tries < MAX_RETRIES


def pause_s(answer: httpx.Response, n_tries: int) -> float:
    """How long to wait before a request is sent again, in seconds."""
    try:
        return min(MAX_PAUSE_S, float(answer.headers["retry-after"]))
    except (KeyError, ValueError):
        return min(MAX_PAUSE_S, 0.5 * 2.0**n_tries)


def connection(base_url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    """What an HTTP client is made with."""
    headers = {"x-api-key": api_key} if api_key else {}
    return {"base_url": base_url, "headers": headers, "timeout": timeout}

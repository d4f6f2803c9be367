"""The Python client of the router, for threads and for coroutines.

    with RatoonClient() as client:
        client.register_tools("shop", tools)
        print(client.route("shop", "Where is order 7?").tool_name)

It needs nothing else of the package but its errors.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

DEFAULT_URL = "http://127.0.0.1:8788"
REGISTER_TIMEOUT_S = 600.0  # a large catalogue on a slow machine
MAX_RETRIES = 2
MAX_PAUSE_S = 30.0
_BUSY = (429, 529)

Tools = Sequence[Mapping[str, Any]]


class ClientError(Exception):
    """The server refused or can't be reached. ``status`` 0: there was no answer."""

    def __init__(self, message: str, status: int = 0, kind: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class Domain:
    """What the server says of registered tools. ``raw`` holds all of it."""

    domain_id: str
    status: str
    num_tools: int
    prefix_tokens: int
    progress: float
    prefill_ms: float
    query_count: int
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool and how likely it is; ``name`` None: that there is no tool for it."""

    name: str | None
    probability: float


@dataclass(frozen=True, slots=True)
class RouteResult:
    """Which tool serves a query. ``error`` is only there in a batch."""

    tool_name: str | None
    confidence: float
    candidates: tuple[Candidate, ...]
    arguments: Mapping[str, Any] | None
    tool_schema: Mapping[str, Any] | None
    cached_tokens: int
    timings: Mapping[str, float]
    error: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a pipeline. ``error``: why it was not run."""

    tool_name: str
    arguments: Mapping[str, Any] | None
    result: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """A query's answer."""

    final_response: str
    tool_calls: tuple[ToolCall, ...]
    confidence: float
    confidence_level: str
    thinking: str
    timings: Mapping[str, float]
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a streamed pipeline: ``route``, ``call``, ``result`` or ``answer``."""

    name: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Call:
    """One request. ``is_safe``: it may be sent again, as it changes nothing."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    is_safe: bool = True
    timeout_s: float | None = None


class _Api:
    """Requests and how their answers are read: what both clients share."""

    @staticmethod
    def register(domain_id: str, tools: Tools, system_prompt: str | None, wait: bool) -> _Call:
        body = {"tools": list(tools), "system_prompt": system_prompt, "wait": wait}
        path = f"/domains/{domain_id}/tools"
        return _Call("POST", path, body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def append(domain_id: str, tools: Tools, wait: bool) -> _Call:
        body = {"tools": list(tools), "wait": wait}
        path = f"/domains/{domain_id}/tools"
        return _Call("PATCH", path, body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def route(domain_id: str, query: str, options: Mapping[str, Any]) -> _Call:
        return _Call("POST", "/route", {"domain_id": domain_id, "query": query, **options})

    @staticmethod
    def batch(domain_id: str, queries: Sequence[str], options: Mapping[str, Any]) -> _Call:
        body = {"domain_id": domain_id, "queries": list(queries), **options}
        return _Call("POST", "/route/batch", body, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def query(domain_id: str, query: str, options: Mapping[str, Any]) -> _Call:
        given = {name: value for name, value in options.items() if value is not None}
        body = {"domain_id": domain_id, "query": query, **given}
        return _Call("POST", "/query", body, is_safe=False, timeout_s=REGISTER_TIMEOUT_S)

    @staticmethod
    def configure(domain_id: str, config: Mapping[str, Any]) -> _Call:
        given = {name: value for name, value in config.items() if value is not None}
        return _Call("POST", f"/admin/llm-config/{domain_id}", given, is_safe=False)


def _domain(told: Mapping[str, Any]) -> Domain:
    return Domain(
        told["domain_id"],
        told["status"],
        told["num_tools"],
        told["prefix_tokens"],
        told["progress"],
        told["prefill_ms"],
        told["query_count"],
        told,
    )


def _route(told: Mapping[str, Any]) -> RouteResult:
    if "error" in told:
        return RouteResult(None, 0.0, (), None, None, 0, {}, told["error"]["message"], told)
    return RouteResult(
        told["tool_name"],
        told["confidence"],
        tuple(Candidate(each["name"], each["probability"]) for each in told["top_candidates"]),
        told.get("arguments"),
        told.get("tool_schema"),
        told["cached_tokens"],
        told["timings"],
        raw=told,
    )


def _pipeline(told: Mapping[str, Any]) -> PipelineResult:
    calls = tuple(
        ToolCall(each["tool_name"], each["arguments"], each["result"], each.get("error"))
        for each in told["tool_calls"]
    )
    return PipelineResult(
        told["final_response"],
        calls,
        told["confidence"],
        told["confidence_level"],
        told.get("thinking", ""),
        told["timings"],
        told,
    )


def _read(answer: httpx.Response) -> dict[str, Any]:
    """The answer's JSON. Raises ClientError for an error."""
    try:
        told = answer.json()
    except ValueError:
        told = None
    if answer.is_success and isinstance(told, dict):
        return told
    error = told.get("error") if isinstance(told, dict) else None
    found = error if isinstance(error, dict) else {}
    raise ClientError(
        str(found.get("message") or f"the server answered {answer.status_code}"),
        answer.status_code,
        str(found.get("type", "")),
        answer.headers.get("request-id", ""),
    )


def _pause_s(answer: httpx.Response, n_tries: int) -> float:
    try:
        return min(MAX_PAUSE_S, float(answer.headers["retry-after"]))
    except (KeyError, ValueError):
        return min(MAX_PAUSE_S, 0.5 * 2.0**n_tries)


def _event(lines: Sequence[str]) -> Event:
    """A record of the stream. Raises ClientError for one that tells an error."""
    name = lines[0].removeprefix("event: ")
    data = json.loads(lines[1].removeprefix("data: "))
    if name == "error":
        error = data["error"]
        raise ClientError(error["message"], 200, error["type"], data.get("request_id", ""))
    return Event(name, data)


def _options(base_url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    headers = {"x-api-key": api_key} if api_key else {}
    return {"base_url": base_url, "headers": headers, "timeout": timeout}


class RatoonClient:
    """For threads; safe to share among them. Raises ClientError."""

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, timeout: float = 60.0
    ) -> None:
        """``timeout``: of one answer, in seconds; registrations and pipelines have longer."""
        self._http = httpx.Client(**_options(base_url, api_key, timeout))

    def health(self) -> dict[str, Any]:
        return self._send(_Call("GET", "/health"))

    def register_tools(
        self, domain_id: str, tools: Tools, system_prompt: str | None = None, *, wait: bool = True
    ) -> Domain:
        """Register tools in OpenAI's or Anthropic's form. Without ``wait`` they are computed in
        the background, and ``domain`` tells how far."""
        return _domain(self._send(_Api.register(domain_id, tools, system_prompt, wait)))

    def append_tools(self, domain_id: str, tools: Tools, *, wait: bool = True) -> Domain:
        """Add tools; only they are computed."""
        return _domain(self._send(_Api.append(domain_id, tools, wait)))

    def domain(self, domain_id: str) -> Domain:
        return _domain(self._send(_Call("GET", f"/domains/{domain_id}")))

    def list_domains(self) -> list[Domain]:
        return [_domain(each) for each in self._send(_Call("GET", "/domains"))["domains"]]

    def remove_tools(self, domain_id: str) -> None:
        self._send(_Call("DELETE", f"/domains/{domain_id}", is_safe=False))

    def route(self, domain_id: str, query: str, **options: Any) -> RouteResult:
        """``top_k``, ``include_schema``, ``include_arguments`` as the server takes them."""
        return _route(self._send(_Api.route(domain_id, query, options)))

    def route_batch(
        self, domain_id: str, queries: Sequence[str], **options: Any
    ) -> list[RouteResult]:
        told = self._send(_Api.batch(domain_id, queries, options))
        return [_route(each) for each in told["results"]]

    def pipeline(self, domain_id: str, query: str, **options: Any) -> PipelineResult:
        """Route, call, execute, answer; options as ``POST /query`` takes them."""
        return _pipeline(self._send(_Api.query(domain_id, query, options)))

    def pipeline_events(self, domain_id: str, query: str, **options: Any) -> Iterator[Event]:
        """The same step by step; the last event's data are those of the whole answer."""
        call = _Api.query(domain_id, query, {**options, "stream": True})
        try:
            with self._http.stream(
                call.method, call.path, json=call.body, timeout=call.timeout_s
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    _read(answer)
                yield from _events(answer.iter_lines())
        except httpx.HTTPError as error:
            raise _unreachable(error) from None

    def configure_llm(
        self, domain_id: str, provider: str, api_key: str = "", **config: Any
    ) -> dict[str, Any]:
        """Store whose model answers a domain's queries; ``_default``: those of all others."""
        given = {"provider": provider, "api_key": api_key, **config}
        return self._send(_Api.configure(domain_id, given))

    def list_llm_configs(self) -> dict[str, Any]:
        configs: dict[str, Any] = self._send(_Call("GET", "/admin/llm-config"))["configs"]
        return configs

    def remove_llm_config(self, domain_id: str) -> None:
        self._send(_Call("DELETE", f"/admin/llm-config/{domain_id}", is_safe=False))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: _Call) -> dict[str, Any]:
        timeout = call.timeout_s or self._http.timeout
        for n_tries in range(MAX_RETRIES + 1):
            try:
                answer = self._http.request(call.method, call.path, json=call.body, timeout=timeout)
            except httpx.HTTPError as error:
                raise _unreachable(error) from None
            if not (call.is_safe and answer.status_code in _BUSY and n_tries < MAX_RETRIES):
                break
            time.sleep(_pause_s(answer, n_tries))
        return _read(answer)


class AsyncRatoonClient:
    """For coroutines. Raises ClientError."""

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, timeout: float = 60.0
    ) -> None:
        """``timeout``: of one answer, in seconds; registrations and pipelines have longer."""
        self._http = httpx.AsyncClient(**_options(base_url, api_key, timeout))

    async def health(self) -> dict[str, Any]:
        return await self._send(_Call("GET", "/health"))

    async def register_tools(
        self, domain_id: str, tools: Tools, system_prompt: str | None = None, *, wait: bool = True
    ) -> Domain:
        return _domain(await self._send(_Api.register(domain_id, tools, system_prompt, wait)))

    async def append_tools(self, domain_id: str, tools: Tools, *, wait: bool = True) -> Domain:
        return _domain(await self._send(_Api.append(domain_id, tools, wait)))

    async def domain(self, domain_id: str) -> Domain:
        return _domain(await self._send(_Call("GET", f"/domains/{domain_id}")))

    async def list_domains(self) -> list[Domain]:
        told = await self._send(_Call("GET", "/domains"))
        return [_domain(each) for each in told["domains"]]

    async def remove_tools(self, domain_id: str) -> None:
        await self._send(_Call("DELETE", f"/domains/{domain_id}", is_safe=False))

    async def route(self, domain_id: str, query: str, **options: Any) -> RouteResult:
        return _route(await self._send(_Api.route(domain_id, query, options)))

    async def route_batch(
        self, domain_id: str, queries: Sequence[str], **options: Any
    ) -> list[RouteResult]:
        told = await self._send(_Api.batch(domain_id, queries, options))
        return [_route(each) for each in told["results"]]

    async def pipeline(self, domain_id: str, query: str, **options: Any) -> PipelineResult:
        return _pipeline(await self._send(_Api.query(domain_id, query, options)))

    async def pipeline_events(
        self, domain_id: str, query: str, **options: Any
    ) -> AsyncIterator[Event]:
        call = _Api.query(domain_id, query, {**options, "stream": True})
        try:
            async with self._http.stream(
                call.method, call.path, json=call.body, timeout=call.timeout_s
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                    _read(answer)
                lines: list[str] = []
                async for line in answer.aiter_lines():
                    if line:
                        lines.append(line)
                    elif lines:
                        yield _event(lines)
                        lines = []
        except httpx.HTTPError as error:
            raise _unreachable(error) from None

    async def configure_llm(
        self, domain_id: str, provider: str, api_key: str = "", **config: Any
    ) -> dict[str, Any]:
        given = {"provider": provider, "api_key": api_key, **config}
        return await self._send(_Api.configure(domain_id, given))

    async def list_llm_configs(self) -> dict[str, Any]:
        told = await self._send(_Call("GET", "/admin/llm-config"))
        configs: dict[str, Any] = told["configs"]
        return configs

    async def remove_llm_config(self, domain_id: str) -> None:
        await self._send(_Call("DELETE", f"/admin/llm-config/{domain_id}", is_safe=False))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: _Call) -> dict[str, Any]:
        timeout = call.timeout_s or self._http.timeout
        for n_tries in range(MAX_RETRIES + 1):
            try:
                answer = await self._http.request(
                    call.method, call.path, json=call.body, timeout=timeout
                )
            except httpx.HTTPError as error:
                raise _unreachable(error) from None
            if not (call.is_safe and answer.status_code in _BUSY and n_tries < MAX_RETRIES):
                break
            await asyncio.sleep(_pause_s(answer, n_tries))
        return _read(answer)


def _events(lines: Iterable[str]) -> Iterator[Event]:
    record: list[str] = []
    for line in lines:
        if line:
            record.append(line)
        elif record:
            yield _event(record)
            record = []


def _unreachable(error: httpx.HTTPError) -> ClientError:
    if isinstance(error, httpx.TimeoutException):
        return ClientError("the server did not answer in time")
    return ClientError(f"the server can't be reached: {type(error).__name__}")

"""The client for coroutines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import httpx

from ratoon.client.calls import DEFAULT_URL, Api, Call, T, Tools, connection
from ratoon.client.results import Domain, Event, PipelineResult, Records, RouteResult, unreachable


class AsyncRatoonClient:
    """For coroutines. Raises ClientError."""

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, timeout: float = 60.0
    ) -> None:
        """``timeout``: of one answer, in seconds; registrations and pipelines have longer."""
        self._http = httpx.AsyncClient(**connection(base_url, api_key, timeout))

    async def health(self) -> dict[str, Any]:
        return await self._send(Api.health())

    async def register_tools(
        self, domain_id: str, tools: Tools, system_prompt: str | None = None, *, wait: bool = True
    ) -> Domain:
        return await self._send(Api.register(domain_id, tools, system_prompt, wait))

    async def append_tools(self, domain_id: str, tools: Tools, *, wait: bool = True) -> Domain:
        return await self._send(Api.append(domain_id, tools, wait))

    async def domain(self, domain_id: str) -> Domain:
        return await self._send(Api.domain(domain_id))

    async def list_domains(self) -> list[Domain]:
        return await self._send(Api.domains())

    async def remove_tools(self, domain_id: str) -> None:
        await self._send(Api.remove(domain_id))

    async def route(
        self, domain_id: str, query: str, *, include_arguments: bool = True, **options: Any
    ) -> RouteResult:
        options["include_arguments"] = include_arguments
        return await self._send(Api.route(domain_id, query, options))

    async def route_batch(
        self, domain_id: str, queries: Sequence[str], **options: Any
    ) -> list[RouteResult]:
        return await self._send(Api.batch(domain_id, queries, options))

    async def pipeline(self, domain_id: str, query: str, **options: Any) -> PipelineResult:
        return await self._send(Api.query(domain_id, query, options))

    async def pipeline_events(
        self, domain_id: str, query: str, **options: Any
    ) -> AsyncIterator[Event]:
        call = Api.query(domain_id, query, {**options, "stream": True})
        try:
            async with self._http.stream(
                call.method, call.path, json=call.body, timeout=call.timeout_s
            ) as answer:
                if not answer.is_success:
                    await answer.aread()
                    call.result(answer)
                records = Records()
                async for piece in answer.aiter_text():
                    for event in records.feed(piece):
                        yield event
                records.close()
        except httpx.HTTPError as error:
            raise unreachable(error) from None

    async def configure_llm(
        self, domain_id: str, provider: str, api_key: str = "", **config: Any
    ) -> dict[str, Any]:
        given = {"provider": provider, "api_key": api_key, **config}
        return await self._send(Api.configure(domain_id, given))

    async def list_llm_configs(self) -> dict[str, Any]:
        return await self._send(Api.configs())

    async def remove_llm_config(self, domain_id: str) -> None:
        await self._send(Api.forget(domain_id))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        timeout = call.timeout_s or self._http.timeout
        for n_tries in itertools.count():
            try:
                answer = await self._http.request(
                    call.method, call.path, json=call.body, timeout=timeout
                )
            except httpx.HTTPError as error:
                raise unreachable(error) from None
            pause_s = call.pause_s(answer, n_tries)
            if pause_s is None:
                break
            await asyncio.sleep(pause_s)
        return call.result(answer)

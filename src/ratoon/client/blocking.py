"""The client for threads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import httpx

from ratoon.client.calls import DEFAULT_URL, Api, Call, T, Tools, connection
from ratoon.client.results import Domain, Event, PipelineResult, Records, RouteResult, unreachable


class RatoonClient:
    """For threads; safe to share among them. Raises ClientError."""

    def __init__(
        self, base_url: str = DEFAULT_URL, api_key: str | None = None, timeout: float = 60.0
    ) -> None:
        """``timeout``: of one answer, in seconds; registrations and pipelines have longer."""
        self._http = httpx.Client(**connection(base_url, api_key, timeout))

    def health(self) -> dict[str, Any]:
        return self._send(Api.health())

    def register_tools(
        self, domain_id: str, tools: Tools, system_prompt: str | None = None, *, wait: bool = True
    ) -> Domain:
        """Register tools in OpenAI's or Anthropic's form. Without ``wait`` they are computed in
        the background, and ``domain`` tells how far."""
        return self._send(Api.register(domain_id, tools, system_prompt, wait))

    def append_tools(self, domain_id: str, tools: Tools, *, wait: bool = True) -> Domain:
        """Add tools; only they are computed."""
        return self._send(Api.append(domain_id, tools, wait))

    def domain(self, domain_id: str) -> Domain:
        return self._send(Api.domain(domain_id))

    def list_domains(self) -> list[Domain]:
        return self._send(Api.domains())

    def remove_tools(self, domain_id: str) -> None:
        self._send(Api.remove(domain_id))

    def route(
        self, domain_id: str, query: str, *, include_arguments: bool = True, **options: Any
    ) -> RouteResult:
        """``top_k`` and ``include_schema`` as the server takes them. Without arguments the answer
        comes sooner, and at the same time for every tool."""
        options["include_arguments"] = include_arguments
        return self._send(Api.route(domain_id, query, options))

    def route_batch(
        self, domain_id: str, queries: Sequence[str], **options: Any
    ) -> list[RouteResult]:
        """Many at once; options as ``POST /route`` takes them."""
        return self._send(Api.batch(domain_id, queries, options))

    def pipeline(self, domain_id: str, query: str, **options: Any) -> PipelineResult:
        """Route, call, execute, answer; options as ``POST /query`` takes them."""
        return self._send(Api.query(domain_id, query, options))

    def pipeline_events(self, domain_id: str, query: str, **options: Any) -> Iterator[Event]:
        """The same step by step; the last event's data are those of the whole answer."""
        call = Api.query(domain_id, query, {**options, "stream": True})
        try:
            with self._http.stream(
                call.method, call.path, json=call.body, timeout=call.timeout_s
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    call.result(answer)
                records = Records()
                for piece in answer.iter_text():
                    yield from records.feed(piece)
                records.close()
        except httpx.HTTPError as error:
            raise unreachable(error) from None

    def configure_llm(
        self, domain_id: str, provider: str, api_key: str = "", **config: Any
    ) -> dict[str, Any]:
        """Store whose model answers a domain's queries; ``_default``: those of all others."""
        given = {"provider": provider, "api_key": api_key, **config}
        return self._send(Api.configure(domain_id, given))

    def list_llm_configs(self) -> dict[str, Any]:
        return self._send(Api.configs())

    def remove_llm_config(self, domain_id: str) -> None:
        self._send(Api.forget(domain_id))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        timeout = call.timeout_s or self._http.timeout
        for n_tries in itertools.count():
            try:
                answer = self._http.request(call.method, call.path, json=call.body, timeout=timeout)
            except httpx.HTTPError as error:
                raise unreachable(error) from None
            pause_s = call.pause_s(answer, n_tries)
            if pause_s is None:
                break
            time.sleep(pause_s)
        return call.result(answer)

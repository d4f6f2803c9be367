"""``POST /query``: a query answered with the help of a domain's tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictBool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ratoon.api.body import read_json
from ratoon.api.domains import tenant_of
from ratoon.api.errors import as_ratoon_error, error_body
from ratoon.api.hang_up import while_connected
from ratoon.api.route import MAX_QUERY, ms
from ratoon.api.service import Service
from ratoon.api.silence import with_silence
from ratoon.api.sse import encode_event
from ratoon.errors import NotFound
from ratoon.router.credentials import Wish
from ratoon.router.desk import Desk, Question
from ratoon.router.execute import MOCK
from ratoon.router.pipeline import CallRecord, Run, Step

_PING = b": ping\n\n"  # a comment: clients of event streams pass over it
Headers = Annotated[dict[str, str], Field(max_length=32)]


class QueryRequest(BaseModel):
    """``stream``: one event for each step, then the whole answer."""

    domain_id: str
    query: str = Field(min_length=1, max_length=MAX_QUERY)
    tool_executor: str = MOCK
    llm_provider: str | None = None
    llm_api_key: str | None = Field(None, repr=False)
    llm_model: str | None = None
    llm_base_url: str | None = None
    llm_headers: Headers | None = Field(None, repr=False)
    llm_system_prompt: str | None = None
    enable_thinking: StrictBool | None = None
    stream: StrictBool = False


async def query(http: Request) -> Response:
    asked = await read_json(http, QueryRequest)
    steps = desk_of(http).answer(tenant_of(http), _question(asked))
    if asked.stream:
        settings = http.app.state.service.settings
        heard = with_silence(steps, settings.ping_s, settings.commit_s)
        first = await while_connected(http, anext(heard))
        events = _events(first, heard, steps, http)
        return StreamingResponse(events, media_type="text/event-stream")
    return JSONResponse(await while_connected(http, _last(steps)))


def desk_of(http: Request) -> Desk:
    service: Service = http.app.state.service
    if service.desk is None:
        raise NotFound("this server has no pipeline")
    return service.desk


def _question(asked: QueryRequest) -> Question:
    wish = Wish(
        asked.llm_provider,
        asked.llm_api_key,
        asked.llm_model,
        asked.llm_base_url,
        asked.llm_headers,
        asked.llm_system_prompt,
    )
    return Question(asked.domain_id, asked.query, asked.tool_executor, wish, asked.enable_thinking)


async def _last(steps: AsyncGenerator[Step]) -> dict[str, Any]:
    async with aclosing(steps):
        async for step in steps:
            last = step
    return _answer(last.run)


async def _events(
    first: Step | None,
    heard: AsyncGenerator[Step | None],
    steps: AsyncGenerator[Step],
    http: Request,
) -> AsyncIterator[bytes]:
    """``heard`` is ``steps`` with silences; ``first`` came first of it. What fails from now
    on is told in an event, as the status is sent."""
    async with aclosing(steps), aclosing(heard):
        try:
            yield _PING if first is None else _event(first)
            async for step in heard:
                yield _PING if step is None else _event(step)
        except Exception as bug:
            error = as_ratoon_error(bug)
            http.app.state.service.metrics.count_error(error.kind)
            body = error_body(error.kind, str(error), http.state.request_id, error.code)
            yield _sse("error", body)


def _event(step: Step) -> bytes:
    if step.name == "answer":
        return _sse("answer", _answer(step.run))
    if step.call is not None:
        return _sse(step.name, _call(step.run, step.call))
    return _sse(step.name, _route(step.run))


def _sse(name: str, data: dict[str, Any]) -> bytes:
    return encode_event({"type": name, **data})


def _route(run: Run) -> dict[str, Any]:
    ranked = run.decision.ranked[:5]
    return {
        "tool_name": run.decision.best[0],
        "confidence": run.confidence,
        "confidence_level": run.level.value,
        "top_candidates": [{"name": name, "probability": share} for name, share in ranked],
    }


def _call(run: Run, call: CallRecord) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "tool_name": call.name,
        "arguments": call.arguments,
        "result": call.result,
        "confidence": call.confidence,
        "confidence_level": run.level.value,
        "route_ms": ms(run.route_s),
        "execute_ms": ms(call.execute_s),
        "llm_ms": ms(call.ask_s),
    }
    return shown | ({"error": call.error} if call.error else {})


def _answer(run: Run) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "final_response": run.text,
        "tool_calls": [_call(run, call) for call in run.calls],
        "confidence": run.confidence,
        "confidence_level": run.level.value,
        "num_tool_calls": len(run.calls),
        "route": _route(run),
        "model": run.model,
        "usage": run.usage,
        "timings": _timings(run),
    }
    return answer | ({"thinking": run.thinking} if run.thinking else {})


def _timings(run: Run) -> dict[str, float]:
    """Milliseconds; all but ``total_ms`` add up to it."""
    parts = {"route_ms": run.route_s}
    if run.calls:
        parts["param_extraction_ms"] = run.ask_s[0]
        for n, seconds in enumerate(run.ask_s[1:-1], 1):
            parts[f"loop_{n}_ms"] = seconds
        parts["synthesis_ms"] = run.ask_s[-1] if len(run.ask_s) > 1 else 0.0
    else:
        parts["llm_ms"] = sum(run.ask_s)
    parts["execute_ms"] = run.execute_s
    parts["other_ms"] = run.total_s - sum(parts.values())
    return {name: ms(value) for name, value in parts.items()} | {"total_ms": ms(run.total_s)}

"""The Python client, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ratoon.client import AsyncRatoonClient, ClientError, RatoonClient
from ratoon.config import Settings
from tests.model.live import live
from tests.server.scripted import serving

SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
TOOLS = [
    {"type": "function", "function": {"name": "get_order", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "list_orders", "description": "All of them."}},
]


class Waiting:
    """The client for coroutines, used as the other one is."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncRatoonClient(url, api_key)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def collected(*given: Any, **options: Any) -> list[Any]:
            return [each async for each in method(*given, **options)]

        is_stream = name.endswith("_events")
        return lambda *a, **o: self._runner.run((collected if is_stream else method)(*a, **o))

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(Settings(model="dummy")) as running:
        yield running.url


@pytest.fixture(params=[RatoonClient, Waiting])
def client(url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    client = request.param(url)
    yield client
    client.close()


def test_tools_are_registered_routed_and_removed(client: Any) -> None:
    assert client.health()["status"] == "ok"
    domain = client.register_tools("shop", TOOLS[:1])
    assert (domain.status, domain.num_tools, domain.progress) == ("registered", 1, 1.0)
    grown = client.append_tools("shop", TOOLS[1:])
    assert grown.num_tools == 2
    found = client.route("shop", "list_orders", include_schema=True, top_k=9)
    assert found.tool_name == "list_orders"
    assert found.tool_schema == TOOLS[1]
    assert sum(each.probability for each in found.candidates) == pytest.approx(1)
    batch = client.route_batch("shop", ["get_order", " ", "none"])
    assert [each.tool_name for each in batch] == ["get_order", None, None]
    assert [bool(each.error) for each in batch] == [False, True, False]
    assert client.domain("shop").query_count == 4
    assert [each.domain_id for each in client.list_domains()] == ["shop"]
    client.remove_tools("shop")
    with pytest.raises(ClientError, match="no domain 'shop'") as caught:
        client.route("shop", "x")
    assert (caught.value.status, caught.value.kind) == (404, "not_found_error")
    assert caught.value.request_id


def test_a_pipeline_runs_whole_and_step_by_step(client: Any) -> None:
    client.register_tools("shop", TOOLS)
    told = client.pipeline("shop", "none", llm_system_prompt="Be kind.")
    assert told.confidence_level == "no_tool"
    assert told.final_response
    events = list(client.pipeline_events("shop", "none"))
    assert [event.name for event in events] == ["route", "answer"]
    assert events[-1].data["final_response"] == told.final_response
    with pytest.raises(ClientError, match="Input should be"):
        list(client.pipeline_events("shop", "none", tool_executor="shell"))


def test_no_character_breaks_a_stream(client: Any) -> None:
    client.register_tools("breaks", TOOLS)
    query = "none\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e."
    route, answer = client.pipeline_events("breaks", query)
    assert (route.name, answer.name) == ("route", "answer")
    assert "\u2028\u2029\x85" in answer.data["final_response"]
    client.remove_tools("breaks")


def test_tools_added_at_the_same_time_are_all_there(client: Any, url: str) -> None:
    client.register_tools("grows", TOOLS)

    def add(n: int) -> int:
        with RatoonClient(url) as own:
            own.append_tools("grows", [{"name": f"added_{n}"}])
        return n

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(add, range(16)))) == 16
    assert client.domain("grows").num_tools == len(TOOLS) + 16
    client.remove_tools("grows")


def test_language_models_are_configured(client: Any) -> None:
    told = client.configure_llm("shop", "openai", "sk-0123456789abcdef", model="m")
    assert told["config"]["api_key"] == "...cdef"
    assert client.list_llm_configs()["shop"]["model"] == "m"
    client.remove_llm_config("shop")
    assert client.list_llm_configs() == {}


def test_a_busy_server_is_asked_again_where_that_does_no_harm() -> None:
    seen: list[str] = []

    async def busy(http: Request) -> Response:
        seen.append(http.url.path)
        body = {"error": {"type": "overloaded_error", "message": "Overloaded"}}
        return JSONResponse(body, 529, {"retry-after": "0.01"})

    routes = [Route(path, busy, methods=["POST"]) for path in ("/route", "/query")]
    with serving(Starlette(routes=routes)) as url, RatoonClient(url) as client:
        for act in (client.route, client.pipeline):
            with pytest.raises(ClientError, match="Overloaded"):
                act("shop", "x")
    assert seen == ["/route"] * 3 + ["/query"]


def test_a_server_that_is_not_there_is_told() -> None:
    with RatoonClient("http://127.0.0.1:9") as client, pytest.raises(ClientError, match="reached"):
        client.health()


def test_an_answer_that_is_not_ours_is_told() -> None:
    async def page(_: Request) -> Response:
        return Response("<html>", 502)

    with serving(Starlette(routes=[Route("/health", page)])) as url, RatoonClient(url) as client:
        with pytest.raises(ClientError, match="answered 502") as caught:
            client.health()
        assert caught.value.status == 502


DEEP = 100_000 * "[" + 100_000 * "]"


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ("event: error\ndata: {}\n\n", "broke off"),
        ('event: error\ndata: {"error": "x"}\n\n', "broke off"),
        ('event: error\ndata: {"error": {"message": "no room"}}\n\n', "no room"),
        ("event: error\ndata: []\n\n", "no event"),
        ("event: route\ndata: [1]\n\n", "no event"),
        ("event: route\n\n", "no event"),
        (f"event: route\ndata: {DEEP}\n\n", "no event"),
        ("event: route\ndata: {}\n\n", "broke off"),
        ("event: answer\ndata: {", "broke off"),
        ("", "broke off"),
    ],
)
@pytest.mark.parametrize("kind", [RatoonClient, Waiting])
def test_a_stream_that_is_odd_or_breaks_off_is_told(kind: Any, stream: str, message: str) -> None:
    async def odd(_: Request) -> Response:
        return Response(stream, media_type="text/event-stream")

    with serving(Starlette(routes=[Route("/query", odd, methods=["POST"])])) as url:
        client = kind(url)
        with pytest.raises(ClientError, match=message):
            list(client.pipeline_events("shop", "x"))
        client.close()

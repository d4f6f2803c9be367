"""The tour of an older tool router's manual, step by step; only its names are Ratoon's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratoon.client import RatoonClient
from ratoon.config import Settings
from tests.model.live import live
from tests.server.scripted import serving
from tests.server.test_query import Upstream

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parents[2] / "examples"


def function(name: str, about: str, field: str, meaning: str) -> dict[str, Any]:
    properties = {field: {"type": "string", "description": meaning}}
    schema = {"type": "object", "properties": properties, "required": [field]}
    return {
        "type": "function",
        "function": {"name": name, "description": about, "parameters": schema},
    }


MERCHANT = [
    function("gmv_summary", "Sum of all sales of a period", "time_period", "e.g. last_30_days"),
    function("track_order", "Where an order is", "order_id", "The order's number"),
]
RETAIL = [
    function(
        "check_inventory",
        "Check product inventory levels by SKU or product name",
        "product",
        "Product name or SKU",
    ),
    function(
        "get_order_status",
        "Get the current status of a customer order by order ID",
        "order_id",
        "The order ID to look up",
    ),
]
IPHONE = "Do we have iPhone 16 Pro in stock?"


class Tour:
    """A running server, and what an outside language model would be."""

    def __init__(self, url: str, upstream: Upstream, outside: str) -> None:
        self.url = url
        self.upstream = upstream
        self.outside = outside

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}{path}", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told


@pytest.fixture(scope="module")
def running() -> Iterator[Tour]:
    """The older service called a tool from a chance of 0.7 on; the small model here is less sure,
    so its tour starts lower."""
    settings = Settings(
        high_confidence=0.05,
        low_confidence=0.01,
        n_ctx=4096,
        preload={"shop": EXAMPLES / "retail_tools.json"},
    )
    upstream = Upstream()
    with ExitStack() as stack:
        url = stack.enter_context(live(settings)).url
        yield Tour(url, upstream, stack.enter_context(serving(upstream.app)))


@pytest.fixture
def tour(running: Tour) -> Tour:
    running.upstream.turns, running.upstream.seen = [], []
    running.upstream.headers, running.upstream.ran = [], []
    return running


def test_the_python_client(tour: Tour) -> None:
    with RatoonClient(tour.url, api_key="your-key", timeout=120) as client:
        client.register_tools("merchant", tools=MERCHANT)
        result = client.route("merchant", "What's my GMV for last 30 days?")
        assert result.tool_name in ("gmv_summary", "track_order", None)
        assert 0 < result.confidence <= 1
        if result.tool_name is not None:
            assert result.arguments is not None
            assert all(isinstance(value, str) for value in result.arguments.values())
        told = client.configure_llm(
            "merchant", provider="claude", api_key="sk-ant-0123456789", base_url=tour.outside
        )
        assert told["config"]["api_key"] == "...6789"
        name = result.tool_name or "gmv_summary"
        field = "time_period" if name == "gmv_summary" else "order_id"
        tour.upstream.turns = [
            {"calls": [(name, json.dumps({field: "x"}))]} if result.tool_name else {"text": "1.2M"},
            {"text": "Your GMV for the last 30 days is $1.2M."},
        ]
        answer = client.pipeline("merchant", "What's my GMV for last 30 days?")
        assert answer.final_response
        headers = tour.upstream.headers[0]  # which of the two is the SDK's choice
        assert "sk-ant-0123456789" in headers.get("x-api-key", headers.get("authorization", ""))
        client.remove_llm_config("merchant")
        client.remove_tools("merchant")


def test_registering_and_routing_over_http(tour: Tour) -> None:
    told = tour.post("/domains/retail/tools", {"tools": RETAIL})
    assert told["status"] == "registered"
    assert (told["domain_id"], told["num_tools"]) == ("retail", 2)
    assert min(told["prefix_tokens"], told["state_size_mb"], told["prefill_ms"]) > 0
    data = tour.post("/route", {"domain_id": "retail", "query": IPHONE, "include_schema": True})
    assert data["tool_name"] == "check_inventory"
    assert data["confidence"] == data["top_candidates"][0]["probability"]
    assert data["tool_schema"] == RETAIL[0]
    assert data["timings"]["route_ms"] > 0


@pytest.mark.parametrize("provider", ["openai", "claude"])
def test_the_whole_pipeline(tour: Tour, provider: str) -> None:
    tour.post("/domains/retail/tools", {"tools": RETAIL})
    tour.upstream.turns = [
        {"calls": [("check_inventory", '{"product": "iPhone 16 Pro"}')]},
        {"text": "We currently have 45."},
    ]
    data = tour.post(
        "/query",
        {
            "domain_id": "retail",
            "query": IPHONE,
            "tool_executor": f"{tour.outside}/execute",
            "llm_provider": provider,
            "llm_api_key": "ollama",
            "llm_model": "qwen3.5:4b",
            "llm_base_url": f"{tour.outside}/v1" if provider == "openai" else tour.outside,
        },
    )
    assert tour.upstream.ran == [
        {"tool": "check_inventory", "arguments": {"product": "iPhone 16 Pro"}}
    ]
    assert data["final_response"] == "We currently have 45."
    assert data["tool_calls"][0]["tool_name"] == "check_inventory"
    assert data["tool_calls"][0]["arguments"] == {"product": "iPhone 16 Pro"}
    assert data["tool_calls"][0]["result"] == {"state": "sent"}
    assert {"route_ms", "param_extraction_ms", "synthesis_ms"} <= data["timings"].keys()
    # the outside model is shown the one tool that was chosen, then what else may be needed
    assert [len(seen["tools"]) for seen in tour.upstream.seen] == [1, min(5, len(RETAIL))]


def test_keys_that_the_server_keeps(tour: Tour) -> None:
    tour.post("/domains/retail/tools", {"tools": RETAIL})
    stored = {"provider": "openai", "api_key": "sk-0123456789abcdef", "model": "gpt-4o"}
    tour.post("/admin/llm-config/_default", {**stored, "base_url": f"{tour.outside}/v1"})
    tour.upstream.turns = [{"text": "In stock."}]
    data = tour.post("/query", {"domain_id": "retail", "query": IPHONE})
    assert data["final_response"] == "In stock."
    assert tour.upstream.headers[0]["authorization"] == "Bearer sk-0123456789abcdef"
    assert tour.upstream.seen[0]["model"] == "gpt-4o"
    assert httpx.delete(f"{tour.url}/admin/llm-config/_default").status_code == 200


def test_domains_that_are_there_from_the_start(tour: Tour) -> None:
    listed = httpx.get(f"{tour.url}/domains").json()
    shop = next(each for each in listed["domains"] if each["domain_id"] == "shop")
    assert shop["num_tools"] == 5
    assert httpx.get(f"{tour.url}/health").json()["status"] == "ok"

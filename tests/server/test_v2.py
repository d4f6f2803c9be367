"""The routes of an older service, called as its client called them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import httpx
import pytest

from ratoon.config import Settings
from ratoon.router.catalogue import Catalogue
from tests.model.live import live
from tests.server.scripted import serving
from tests.server.test_query import Upstream

TOOLS = [
    {"type": "function", "function": {"name": "gmv_summary", "description": "Sales."}},
    {"type": "function", "function": {"name": "track_order", "description": "Where it is."}},
]


class Older:
    """The older client's requests."""

    def __init__(self, url: str, upstream: Upstream, upstream_url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.upstream = upstream
        self.upstream_url = upstream_url

    def register(self, tool_id: str, tools: Any) -> Any:
        return self._post("/v2/tools", tool_id=tool_id, tools=tools)

    def route(self, tool_id: str, query: str) -> Any:
        return self._post("/route", tool_id=tool_id, query=query, max_new_tokens=256)

    def pipeline(self, tool_id: str, query: str, **more: Any) -> Any:
        given = {"llm_format": "claude", "tool_executor": "mock", "max_new_tokens": 256, **more}
        return self._post("/v2/pipeline", tool_id=tool_id, query=query, **given)

    def _post(self, path: str, **body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, Upstream, str]]:
    upstream = Upstream()
    with ExitStack() as stack:
        url = stack.enter_context(live(Settings(model="dummy"))).url
        yield url, upstream, stack.enter_context(serving(upstream.app))


@pytest.fixture
def older(running: tuple[str, Upstream, str]) -> Iterator[Older]:
    url, upstream, upstream_url = running
    upstream.turns, upstream.seen, upstream.ran = [], [], []
    client = Older(url, upstream, upstream_url)
    yield client
    client.http.delete("/admin/llm-config/merchant")
    client.http.close()


def test_tools_are_registered_listed_and_removed(older: Older) -> None:
    told = older.register("merchant", TOOLS)
    assert told["status"] in ("compiled", "already_cached")
    assert (told["tool_id"], told["num_tools"], len(told["cache_hash"])) == ("merchant", 2, 16)
    assert told["prefix_tokens"] > 0
    assert told["cache_size_mb"] > 0
    again = older.register("other", TOOLS)
    assert (again["status"], again["cache_hash"]) == ("already_cached", told["cache_hash"])
    registry = older.http.get("/v2/registry").json()
    assert registry["num_tool_sets"] == 2
    assert registry["tool_sets"][0]["tool_names"] == ["gmv_summary", "track_order"]
    first = older.http.delete("/v2/tools/other").json()
    assert (first["tools_removed"], first["cache_evicted"]) == (2, False)
    assert older.http.delete("/v2/tools/merchant").json()["cache_evicted"]
    assert older.http.delete("/v2/tools/merchant").status_code == 404


def test_a_query_is_routed(older: Older) -> None:
    older.register("merchant", TOOLS)
    told = older.route("merchant", "gmv_summary")
    assert told["tool_id"] == "merchant"
    assert [each["tool_name"] for each in told["selections"]] == ["gmv_summary"]
    assert told["confidence"] == pytest.approx(1)
    body = {"tool_id": "merchant", "query": "gmv_summary", "max_new_tokens": 1}
    short = older.http.post("/route", json=body).json()
    assert short["selections"] == [{"tool_name": "gmv_summary", "arguments": {}}]
    assert len(short["raw_response"]) < len(told["raw_response"])
    none = older.route("merchant", "none")
    assert (none["selections"], none["raw_response"]) == ([], "")
    text = older._post("/v2/query", tool_id="merchant", query="track_order")
    assert text["response"].startswith("track_order")
    assert text["cache_hit"] is True
    assert text["timings"]["total_ms"] > 0


def test_a_pipeline_hands_over_what_a_language_model_needs(older: Older) -> None:
    older.register("merchant", TOOLS)
    for form in ("claude", "openai"):
        told = older.pipeline("merchant", "none", llm_format=form)
        assert told["llm_context"] == [{"role": "user", "content": "none"}]
        assert told["selected_tool"] is None
        assert told["tool_result"] is None
        assert told["llm_response"] is None
        assert told["timings"]["llm_error"] is None
    raw = older.pipeline("merchant", "none", llm_format="raw")
    assert raw["llm_context"]["query"] == "none"


@pytest.mark.parametrize("form", ["claude", "openai"])
def test_what_is_handed_over_can_be_sent_on(older: Older, form: str) -> None:
    older.register("dotted", [{"name": "shop.gmv:summary"}])
    told = older.pipeline("dotted", "shop.gmv:summary", llm_format=form)
    assert told["selected_tool"] == "shop.gmv:summary"
    asked, called, _ = told["llm_context"]
    assert asked["role"] == "user"
    calls = called["content"] if form == "claude" else called["tool_calls"]
    (name,) = [each["name"] if form == "claude" else each["function"]["name"] for each in calls]
    assert name == "shop_gmv_summary"


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        (r'[{"name": "x", "description": "\ud83d"}]', "not valid JSON"),
        ('[{"name": "x", "input_schema": ' + 100 * "[" + 100 * "]" + "}]", "should be an object"),
        ('[{"name": "x", "input_schema": ' + 100 * '{"x":' + "1" + 101 * "}" + "]", "deeper"),
        ('[{"name": "x", "input_schema": ' + 900 * '{"x":' + "1" + 901 * "}" + "]", "not valid"),
        ('[{"name": "x", "input_schema": {"maximum": 1e999}}]', "without infinities"),
    ],
)
def test_tools_that_can_not_be_sent_on_are_refused(older: Older, tools: str, message: str) -> None:
    body = f'{{"tools": {tools}}}'
    answer = older.http.post("/domains/odd/tools", content=body)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]
    assert older.http.get("/domains/odd").status_code == 404


HUGE = "x" * (1 << 20)


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "x", "junk": HUGE},
        {"name": "x", "description": HUGE},
        {"name": "x", "input_schema": {"title": HUGE}},
        {"type": "function", "function": {"name": "x"}, "junk": HUGE},
    ],
)
def test_a_tool_that_is_too_large_is_refused_and_nothing_is_lost(older: Older, tool: Any) -> None:
    older.register("merchant", TOOLS)
    tools = [{"name": "ok"}, tool]
    for answer in (
        older.http.post("/domains/merchant/tools", json={"tools": tools}),
        older.http.patch("/domains/merchant/tools", json={"tools": tools}),
        older.http.post("/v2/tools", json={"tool_id": "merchant", "tools": tools}),
    ):
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["message"] == "tools.1: larger than 65536 bytes"
    assert older.http.get("/domains/merchant").json()["tools"] == TOOLS


def test_what_is_wrong_is_told_before_a_tool_runs(older: Older) -> None:
    older.register("merchant", TOOLS)
    wrong = {"llm_api_key": "sk-ant-0123456789", "llm_base_url": "https://evil.example/v1"}
    body = {
        "tool_id": "merchant",
        "query": "gmv_summary",
        "tool_executor": f"{older.upstream_url}/execute",
    }
    answer = older.http.post("/v2/pipeline", json={**body, **wrong})
    assert answer.status_code == 400
    assert older.upstream.ran == []
    assert older.http.post("/v2/pipeline", json=body).status_code == 200
    assert len(older.upstream.ran) == 1


@pytest.mark.parametrize("provider", ["claude", "openai"])
def test_a_stored_language_model_answers(older: Older, provider: str) -> None:
    older.register("merchant", TOOLS)
    base = older.upstream_url + ("/v1" if provider == "openai" else "")
    config = {"provider": provider, "api_key": "sk-ant-0123456789abcdef", "base_url": base}
    stored = older.http.post("/admin/llm-config/merchant", json=config).json()
    assert stored["tool_id"] == "merchant"
    older.upstream.turns = [{"text": "Your GMV is fine."}, 500]
    told = older.pipeline("merchant", "gmv_summary", llm_format=provider)
    assert told["llm_response"] == "Your GMV is fine."
    assert told["timings"]["llm_model"] == "scripted"
    assert told["arguments"] is not None
    assert told["tool_result"]["mock"] is True
    assert len(told["llm_context"]) == 3
    assert "0123456789" not in older.http.get("/admin/llm-config").text


def test_the_admin_sees_memory_and_use(older: Older) -> None:
    older.register("merchant", TOOLS)
    memory = older.http.get("/admin/memory").json()
    assert memory["max_cache_mb"] > 0
    assert memory["figures"]["device_slots_parked"] > 0
    assert older.http.post("/admin/evict").json()["evicted"] > 0
    assert older.http.get("/admin/memory").json()["figures"]["device_slots_parked"] == 0
    assert older.route("merchant", "track_order")["selections"][0]["tool_name"] == "track_order"
    usage = older.http.get("/admin/metrics").json()
    assert usage["auth_enabled"] is False
    assert (usage["num_keys"], usage["per_key"]) == (0, {})


def test_the_admin_sees_whose_state_is_held(older: Older) -> None:
    began_s = time.time()
    told = older.register("merchant", TOOLS)
    older.register("same", TOOLS)
    older.register("other", TOOLS[:1])
    memory = older.http.get("/admin/memory").json()
    entries = memory["entries"]
    assert memory["num_entries"] == len(entries) >= 2
    own = entries[told["cache_hash"]]
    assert (own["tool_count"], own["size_mb"]) == (2, told["cache_size_mb"])
    assert began_s <= own["last_accessed"] <= time.time()
    older.route("merchant", "track_order")
    later = older.http.get("/admin/memory").json()["entries"][told["cache_hash"]]
    assert later["last_accessed"] > own["last_accessed"]
    older.http.post("/admin/evict")
    assert older.http.get("/admin/memory").json()["entries"] == {}
    for name in ("same", "other"):
        older.http.delete(f"/v2/tools/{name}")


def test_a_query_that_finds_its_tools_kept_is_a_hit(older: Older) -> None:
    older.register("merchant", TOOLS)
    usage = [older.http.get("/admin/metrics").json()]
    kept = []
    for act in (lambda: None, lambda: older.http.post("/admin/evict"), lambda: None):
        act()
        timings = older.route("merchant", "track_order")["timings"]
        assert timings["total_ms"] == timings["route_ms"] > 0
        kept.append(timings["cache_hit"])
        usage.append(older.http.get("/admin/metrics").json())
    assert kept == [True, False, True]
    counts = [(each["cache_hits"], each["cache_misses"]) for each in usage]
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(counts)]
    assert steps == [(1, 0), (0, 1), (1, 0)]


def test_a_batch_and_a_pipeline_count_as_queries(older: Older) -> None:
    older.register("merchant", TOOLS)
    before = older.http.get("/admin/metrics").json()
    body = {"tool_id": "merchant", "queries": ["track_order", "none"]}
    results = older.http.post("/route/batch", json=body).json()["results"]
    assert [each["timings"]["cache_hit"] for each in results] == [True, True]
    assert older.pipeline("merchant", "none")["timings"]["cache_hit"] is True
    usage = older.http.get("/admin/metrics").json()
    assert usage["cache_hits"] - before["cache_hits"] == 3
    assert usage["cache_misses"] == before["cache_misses"]


def test_a_catalogue_is_hashed_once_and_not_by_the_event_loop(
    older: Older, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, digest = [], Catalogue.digest

    def watched(catalogue: Catalogue) -> str:
        hashed.append(threading.current_thread().name)
        return digest(catalogue)

    monkeypatch.setattr(Catalogue, "digest", watched)
    older.register("merchant", TOOLS)
    older.http.get("/v2/registry")
    older.http.get("/admin/memory")
    older.http.delete("/v2/tools/merchant")
    (worker,) = hashed
    assert worker.startswith("asyncio_")


def test_the_older_errors_are_told(older: Older) -> None:
    assert older.http.post("/route", json={"tool_id": "nowhere", "query": "x"}).status_code == 404
    bad = older.http.post("/v2/tools", json={"tool_id": "../x", "tools": TOOLS})
    assert bad.status_code == 400
    assert "tool_id" in bad.json()["error"]["message"]
    away = {"tool_id": "merchant", "query": "gmv_summary", "tool_executor": "http://10.0.0.1/x"}
    older.register("merchant", TOOLS)
    assert older.http.post("/v2/pipeline", json=away).status_code == 400

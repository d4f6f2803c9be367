"""The small routes."""

from __future__ import annotations

import anthropic
import httpx

from ratoon.api.models import model_ids
from tests.server.scripted import ScriptedEngine


def test_health(http: httpx.Client, engine: ScriptedEngine) -> None:
    expected = {"status": "ok", "model": "tiny", "n_ctx": engine.n_ctx}
    assert http.get("/health").json() == expected


def test_warming_routes(http: httpx.Client) -> None:
    for response in (http.head("/"), http.head("/api/hello"), http.get("/api/hello")):
        assert response.status_code == 200
        assert response.content == b""
        assert response.headers["request-id"].startswith("req_")


def test_models(client: anthropic.Anthropic, http: httpx.Client, engine: ScriptedEngine) -> None:
    page = client.models.list(limit=1000)
    assert [model.id for model in page.data] == ["tiny", "claude-local-tiny"]
    assert page.data[0].max_input_tokens == engine.n_ctx
    assert client.models.retrieve("claude-local-tiny").display_name == "tiny"
    body = http.get("/v1/models?limit=1").json()
    assert (body["has_more"], body["first_id"], body["last_id"]) == (True, "tiny", "tiny")


def test_models_are_paged(client: anthropic.Anthropic, http: httpx.Client) -> None:
    assert [m.id for m in client.models.list(limit=1)] == ["tiny", "claude-local-tiny"]
    body = http.get("/v1/models?before_id=claude-local-tiny").json()
    assert [m["id"] for m in body["data"]] == ["tiny"]
    assert http.get("/v1/models?after_id=claude-local-tiny").json()["first_id"] is None


def test_names_with_slashes(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    engine.model_name = "owner/repo:Q4"
    assert client.models.retrieve("claude-local-owner/repo:Q4").type == "model"


def test_a_name_that_is_listed_anyway_gets_no_alias() -> None:
    assert model_ids("My-Claude-1B") == ["My-Claude-1B"]


def test_count_tokens(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    count = client.messages.count_tokens(
        model="m", messages=[{"role": "user", "content": "Hi"}], system="Be brief."
    )
    client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
    assert count.input_tokens == len(engine.submitted[0].prompt)


def test_metrics(http: httpx.Client) -> None:
    response = http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE ratoon_ttft_seconds histogram" in response.text
    assert {
        'ratoon_active_requests{state="running"} 2.0',
        'ratoon_active_requests{state="waiting"} 0.0',
        'ratoon_tier_bytes{tier="host"} 7.0',
        'ratoon_tier_tokens{tier="device"} 8.0',
        'ratoon_cache{figure="tree_nodes"} 9.0',
    } <= set(response.text.splitlines())

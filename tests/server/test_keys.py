"""Keys, roles, tenants and limits over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from ratoon.api.app import routes
from ratoon.api.auth import MAX_FAILURES
from ratoon.client import ClientError, RatoonClient
from ratoon.config import Settings
from ratoon.keys import PREFIX, Role, add_key, digest_of
from tests.model.live import live
from tests.server.test_client import Waiting

TOOLS = [{"name": "get_order"}, {"name": "list_orders"}]


class Door:
    """A server and keys to it."""

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self.keys = {
            name: add_key(file, name, role, per_minute)
            for name, role, per_minute in (
                ("boss", Role.ADMIN, 0),
                ("one", Role.USER, 0),
                ("two", Role.USER, 0),
                ("slow", Role.USER, 3),
            )
        }
        self._clients: list[httpx.Client] = []
        self.admin, self.one, self.two, self.slow = map(self._with, self.keys.values())
        self.nobody = self._with("")

    def _with(self, key: str) -> httpx.Client:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._clients.append(httpx.Client(base_url=self.url, headers=headers, timeout=60))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    monkeypatch.setattr("ratoon.keys.LOOK_S", 0.0)
    file = tmp_path / "keys.json"
    add_key(file, "first", Role.USER, 0)
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(TOOLS))
    settings = Settings(model="dummy", keys_file=file, preload={"for-all": tools})
    with live(settings) as running:
        door = Door(running.url, file)
        yield door
        door.close()


def test_each_tenant_has_its_own_domains(door: Door) -> None:
    for client in (door.one, door.two):
        assert client.post("/domains/shop/tools", json={"tools": TOOLS}).status_code == 200
    assert door.one.delete("/domains/shop").status_code == 200
    asked = {"domain_id": "shop", "query": "get_order"}
    assert door.one.post("/route", json=asked).status_code == 404
    assert door.two.post("/route", json=asked).json()["tool_name"] == "get_order"
    assert [each["domain_id"] for each in door.one.get("/domains").json()["domains"]] == ["for-all"]
    assert door.two.post("/query", json={**asked, "query": "none"}).status_code == 200


def test_a_domain_is_not_there_for_another_tenant(door: Door) -> None:
    assert door.one.post("/domains/mine/tools", json={"tools": TOOLS}).status_code == 200
    asked = {"domain_id": "mine", "tool_id": "mine", "query": "get_order", "queries": ["x"]}
    for answer in (
        door.two.get("/domains/mine"),
        door.two.patch("/domains/mine/tools", json={"tools": [{"name": "other"}]}),
        door.two.delete("/domains/mine"),
        door.two.delete("/v2/tools/mine"),
        *(door.two.post(path, json=asked) for path in ("/route", "/route/batch", "/query")),
        *(door.two.post(path, json=asked) for path in ("/v2/query", "/v2/pipeline")),
    ):
        assert answer.status_code == 404, answer.request.url
        assert answer.json()["error"]["type"] == "not_found_error"
    assert [each["tool_id"] for each in door.two.get("/v2/registry").json()["tool_sets"]] == [
        "for-all"
    ]
    assert door.one.get("/domains/mine").json()["tools"] == TOOLS


def test_a_tenant_is_not_told_what_another_has(door: Door) -> None:
    tools = [{"name": "get_invoice"}]
    for client, tool_id in ((door.one, "a"), (door.one, "b"), (door.two, "c")):
        body = {"tool_id": tool_id, "tools": tools}
        assert client.post("/v2/tools", json=body).status_code == 200
    left = [door.one.delete(f"/v2/tools/{name}").json()["cache_evicted"] for name in "ab"]
    assert left == [False, True]  # of its own there is none, and the other's is none of its own
    asked = {"tool_id": "c", "query": "get_invoice"}
    assert door.two.post("/route", json=asked).json()["tool_name"] == "get_invoice"


def _admin_calls() -> list[tuple[str, str]]:
    """Every method of every route that the server has under /admin."""
    return [
        (method, re.sub(r"\{.*?\}", "shop", route.path))
        for route in routes()
        if route.path.startswith("/admin")
        for method in sorted(route.methods or ())
    ]


def test_all_that_is_the_admins_is_for_nobody_else(door: Door) -> None:
    calls = _admin_calls()
    assert {("HEAD", "/admin/memory"), ("POST", "/admin/evict")} < set(calls)
    for method, path in calls:
        assert door.one.request(method, path).status_code == 403, (method, path)
        assert door.nobody.request(method, path).status_code == 401, (method, path)
        assert door.admin.request(method, path).status_code not in (401, 403, 405), (method, path)


def test_roles_are_kept(door: Door) -> None:
    for path in ("/admin/llm-config", "/metrics"):
        assert door.admin.get(path).status_code == 200
        refused = door.one.get(path)
        assert refused.status_code == 403
        assert refused.json()["error"]["type"] == "permission_error"
    assert door.one.post("/think", json={"think": True}).status_code == 403
    assert door.one.get("/think").status_code == 200
    for path in ("/domains", "/admin/llm-config"):
        assert door.nobody.get(path).status_code == 401
    assert door.nobody.get("/health").status_code == 200
    for path in ("/domains/shop", "/admin/llm-config", "/metrics", "/v2/registry"):
        assert door.nobody.head(path).status_code == 401
    assert door.nobody.head("/api/hello").status_code == 200


def test_what_is_loaded_at_the_start_is_for_all(door: Door) -> None:
    asked = {"domain_id": "for-all", "query": "get_order"}
    for client in (door.one, door.two):
        assert client.post("/route", json=asked).json()["tool_name"] == "get_order"
        assert client.get("/domains").json()["num_domains"] == 1
    assert door.one.delete("/domains/for-all").status_code == 404
    more = {"tools": [{"name": "cancel_order"}]}
    assert door.one.patch("/domains/for-all/tools", json=more).json()["num_tools"] == 3
    assert door.two.get("/domains/for-all").json()["num_tools"] == 2
    assert door.one.delete("/domains/for-all").status_code == 200
    assert door.one.get("/domains/for-all").json()["num_tools"] == 2


def test_an_admins_default_language_model_is_for_all(door: Door) -> None:
    model = {
        "provider": "openai",
        "api_key": "sk-0123456789abcdef",
        "base_url": "http://[::1]:9/v1",
    }
    assert door.admin.post("/admin/llm-config/_default", json=model).status_code == 200
    answer = door.one.post("/query", json={"domain_id": "for-all", "query": "get_order"})
    assert answer.status_code == 502
    assert "can't be reached" in answer.text
    assert door.admin.delete("/admin/llm-config/_default").status_code == 200
    answer = door.one.post("/query", json={"domain_id": "for-all", "query": "none"})
    assert answer.status_code == 200


def test_this_machine_is_not_called_for_those_who_come_with_a_key(door: Door) -> None:
    asked = {"domain_id": "for-all", "query": "none", "tool_executor": "http://127.0.0.1:9/x"}
    answer = door.one.post("/query", json=asked)
    assert answer.status_code == 400
    assert "does not call 127.0.0.1" in answer.json()["error"]["message"]


def test_a_limit_is_told_and_kept(door: Door) -> None:
    answers = [door.slow.get("/domains") for _ in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    for prefix in ("anthropic-ratelimit-requests-", "x-ratelimit-"):
        assert [each.headers[f"{prefix}limit"] for each in answers] == ["3"] * 4
        left = [each.headers[f"{prefix}remaining"] for each in answers]
        assert left == ["2", "1", "0", "0"]
    last = answers[-1]
    assert last.headers["retry-after"] == last.headers["x-ratelimit-reset"]
    assert all("retry-after" not in each.headers for each in answers[:3])
    assert last.json()["error"]["type"] == "rate_limit_error"
    assert 0 < int(last.headers["retry-after"]) <= 60
    assert door.one.get("/domains").status_code == 200


def test_a_limit_tells_when_it_ends(door: Door) -> None:
    waits: list[int] = []
    for _ in range(4):
        before = datetime.now(UTC)
        headers = door.slow.get("/domains").headers
        after = datetime.now(UTC)
        waits.append(int(headers["x-ratelimit-reset"]))
        wait = timedelta(seconds=waits[-1])
        reset = datetime.fromisoformat(headers["anthropic-ratelimit-requests-reset"])
        assert before + wait - timedelta(seconds=1) < reset <= after + wait
    assert 60 >= waits[0] >= waits[1] >= waits[2] >= waits[3] > 0


def test_without_a_limit_none_is_told(door: Door) -> None:
    for client in (door.one, door.admin, door.nobody):
        assert not [name for name in client.get("/domains").headers if "ratelimit" in name]


def test_a_key_in_the_address_is_none(door: Door) -> None:
    for name in ("api_key", "x-api-key", "key"):
        answer = door.nobody.get("/domains", params={name: door.keys["one"]})
        assert answer.status_code == 401
        assert door.keys["one"] not in answer.text


def test_who_guesses_keys_is_not_listened_to(door: Door) -> None:
    headers = {"x-api-key": "wrong"}
    seen = [door.nobody.get("/domains", headers=headers).status_code for _ in range(40)]
    assert seen == [401] * MAX_FAILURES + [429] * (40 - MAX_FAILURES)
    assert door.one.get("/domains").status_code == 200  # from the same address


def test_metrics_name_keys_and_hold_none(door: Door) -> None:
    asked = {"domain_id": "for-all", "query": "get_order"}
    assert door.one.post("/route", json=asked).status_code == 200
    assert door.one.get("/domains/nowhere").status_code == 404
    assert door.two.get("/domains").status_code == 200
    told = door.admin.get("/admin/metrics")
    usage = told.json()
    assert (usage["auth_enabled"], usage["num_keys"]) == (True, 2)
    one, two = (usage["per_key"][name] for name in ("one", "two"))
    assert set(usage["per_key"]) == {"one", "two"}
    assert (one["total_requests"], one["errors"], one["cache_hits"], one["cache_misses"]) == (
        2,
        1,
        1,
        0,
    )
    assert (two["total_requests"], two["errors"], two["cache_hits"]) == (1, 0, 0)
    assert one["avg_latency_ms"] == pytest.approx(one["total_latency_ms"] / 2, abs=0.001)
    for name in ("total_requests", "errors", "cache_hits", "cache_misses"):
        assert usage[name] == one[name] + two[name]
    text = door.admin.get("/metrics").text
    assert 'ratoon_key_requests_total{key="one",status="200"} 1.0' in text
    assert 'ratoon_key_requests_total{key="boss",status="200"} 1.0' in text


def test_the_servers_own_requests_are_nobodys(door: Door) -> None:
    asked = {"domain_id": "for-all", "query": "none"}
    assert door.one.post("/query", json=asked).json()["usage"]["output_tokens"] > 0
    assert set(door.admin.get("/admin/metrics").json()["per_key"]) == {"one"}


def test_no_answer_holds_a_key(door: Door) -> None:
    wrong = {"x-api-key": f"{PREFIX}wrong"}
    answers = [door.nobody.get("/domains", headers=wrong), door.nobody.get("/health")]
    for client in (door.admin, door.one, door.slow):
        answers += [client.request(method, path) for method, path in _admin_calls()]
        answers += [client.get(path) for path in ("/metrics", "/domains", "/v2/registry", "/x")]
        answers += [client.get("/domains/for-all"), client.post("/query", json={})]
    assert {200, 400, 401, 403, 404, 429} <= {each.status_code for each in answers}
    secrets = [PREFIX, *(digest_of(key.encode()) for key in door.keys.values())]
    for each in answers:
        seen = each.text + repr(each.headers)
        assert not [secret for secret in secrets if secret in seen], each.request.url


@pytest.mark.parametrize("kind", [RatoonClient, Waiting])
def test_a_client_needs_a_key(door: Door, kind: Any) -> None:
    for key in (None, f"{PREFIX}wrong"):
        client = kind(door.url, key)
        assert client.health()["status"] == "ok"
        for act in (
            client.list_domains,
            client.list_llm_configs,
            lambda client=client: client.register_tools("own", TOOLS),
            lambda client=client: client.route("for-all", "get_order"),
            lambda client=client: list(client.pipeline_events("for-all", "none")),
        ):
            with pytest.raises(ClientError) as caught:
                act()
            assert (caught.value.status, caught.value.kind) == (401, "authentication_error")
        client.close()


@pytest.mark.parametrize("kind", [RatoonClient, Waiting])
def test_a_client_with_a_key_may_do_all(door: Door, kind: Any) -> None:
    client = kind(door.url, door.keys["boss"])
    assert client.register_tools("own", TOOLS[:1]).num_tools == 1
    assert client.append_tools("own", TOOLS[1:]).num_tools == 2
    assert client.domain("own").status == "registered"
    assert [each.domain_id for each in client.list_domains()] == ["for-all", "own"]
    assert client.route("own", "list_orders").tool_name == "list_orders"
    assert [each.tool_name for each in client.route_batch("own", ["get_order"])] == ["get_order"]
    told = client.pipeline("own", "none")
    assert told.confidence_level == "no_tool"
    events = client.pipeline_events("own", "none")
    assert [event.name for event in events] == ["route", "answer"]
    assert client.configure_llm("own", "openai", "sk-0123456789abcdef")["status"] == "configured"
    assert set(client.list_llm_configs()) == {"own"}
    client.remove_llm_config("own")
    client.remove_tools("own")
    client.close()
    user = kind(door.url, door.keys["one"])
    with pytest.raises(ClientError) as caught:
        user.list_llm_configs()
    assert (caught.value.status, caught.value.kind) == (403, "permission_error")
    user.close()

"""Keys, roles, tenants and limits over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ratoon.api.auth import MAX_FAILURES
from ratoon.config import Settings
from ratoon.keys import Role, add_key
from tests.model.live import live

TOOLS = [{"name": "get_order"}, {"name": "list_orders"}]


class Door:
    """A server and keys to it."""

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self._clients: list[httpx.Client] = []
        self.admin = self._with(add_key(file, "boss", Role.ADMIN, 0))
        self.one = self._with(add_key(file, "one", Role.USER, 0))
        self.two = self._with(add_key(file, "two", Role.USER, 0))
        self.slow = self._with(add_key(file, "slow", Role.USER, 3))
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
    left = [each.headers["anthropic-ratelimit-requests-remaining"] for each in answers]
    assert left == ["2", "1", "0", "0"]
    assert answers[0].headers["x-ratelimit-limit"] == "3"
    last = answers[-1]
    assert last.json()["error"]["type"] == "rate_limit_error"
    assert 0 < int(last.headers["retry-after"]) <= 60
    assert door.one.get("/domains").status_code == 200


def test_who_guesses_keys_is_not_listened_to(door: Door) -> None:
    headers = {"x-api-key": "wrong"}
    seen = [door.nobody.get("/domains", headers=headers).status_code for _ in range(40)]
    assert seen == [401] * MAX_FAILURES + [429] * (40 - MAX_FAILURES)
    assert door.one.get("/domains").status_code == 200  # from the same address


def test_metrics_name_keys_and_hold_none(door: Door) -> None:
    door.one.get("/domains")
    text = door.admin.get("/metrics").text
    assert 'ratoon_key_requests_total{key="one",status="200"} 1.0' in text
    assert "rtn-" not in text

"""Without a key, only this machine's own names and pages are let in."""

from __future__ import annotations

import httpx
import pytest

from ratoon.api.app import create_app
from ratoon.api.service import Service, key_ring
from tests.server.scripted import ByteRenderer, ScriptedEngine, Switch


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rebound.example:8788"},
        {"host": "192.0.2.7"},
        {"host": "["},
        {"origin": "https://page.example"},
        {"origin": "null"},
        {"origin": "https://localhost.page.example"},
    ],
)
def test_strangers_are_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    response = http.get("/v1/models", headers=headers)
    assert response.status_code == 403
    assert response.json()["error"]["type"] == "permission_error"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8788"},
        {"host": "[::1]:8788"},
        {"host": "127.0.0.2"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1:8788"},
    ],
)
def test_this_machine_is_let_in(http: httpx.Client, headers: dict[str, str]) -> None:
    assert http.get("/v1/models", headers=headers).status_code == 200


def test_with_a_key_any_name_will_do(
    http: httpx.Client, switch: Switch, engine: ScriptedEngine
) -> None:
    switch.app = create_app(Service(engine, ByteRenderer(), keys=key_ring("k")))
    headers = {"x-api-key": "k", "host": "box.example", "origin": "https://page.example"}
    assert http.get("/v1/models", headers=headers).status_code == 200

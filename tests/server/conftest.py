"""Fixtures: a scripted engine behind a real server, raw HTTP and the official client."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import httpx
import pytest

from ratoon.api.app import create_app
from ratoon.api.service import ApiSettings, Service
from tests.server.scripted import ByteRenderer, ScriptedEngine, Switch, serving


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def renderer() -> ByteRenderer:
    return ByteRenderer()


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(ping_s=0.1, commit_s=0.2, max_body_bytes=1_000_000)


@pytest.fixture
def service(engine: ScriptedEngine, renderer: ByteRenderer, settings: ApiSettings) -> Service:
    return Service(engine, renderer, settings=settings)


@pytest.fixture(scope="session")
def switch() -> Switch:
    return Switch()


@pytest.fixture(scope="session")
def server_url(switch: Switch) -> Iterator[str]:
    with serving(switch) as base_url:
        yield base_url


@pytest.fixture
def url(server_url: str, switch: Switch, service: Service) -> str:
    switch.app = create_app(service)
    return server_url


@pytest.fixture(scope="session")
def shared_http(server_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def shared_client(server_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server_url, api_key="any", max_retries=0, timeout=60
    ) as client:
        yield client


@pytest.fixture
def http(url: str, shared_http: httpx.Client) -> httpx.Client:
    return shared_http


@pytest.fixture
def client(url: str, shared_client: anthropic.Anthropic) -> anthropic.Anthropic:
    return shared_client

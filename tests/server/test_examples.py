"""The examples, run as they are told to be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ratoon.config import Settings
from tests.model.live import live
from tests.server.scripted import serving

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live(Settings(model="dummy")) as running:
        yield running.url


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_assistant_routes(url: str) -> None:
    shown = run("retail_assistant.py", "--url", url, "--demo", "--route-only")
    assert "5 tools" in shown
    assert shown.count("tokens from the cache") == 4


def test_the_assistant_answers(url: str) -> None:
    shown = run("retail_assistant.py", "--url", url, "--demo")
    assert shown.count("> ") >= 4
    assert shown.count(" ms\n") == 4


def test_queries_are_evaluated(url: str, tmp_path: Path) -> None:
    queries = tmp_path / "queries.jsonl"
    cases = [{"query": "check_inventory", "tool": "check_inventory"}] * 70
    cases += [{"query": "none", "tool": None}, {"query": "start_return", "tool": None}]  # type: ignore[dict-item]
    queries.write_text("\n".join(map(json.dumps, cases)))
    shown = run(
        "batch_evaluation.py", str(EXAMPLES / "retail_tools.json"), str(queries), "--url", url
    )
    assert "right: 71 of 72" in shown
    assert "None -> start_return" in shown


def test_a_service_of_ones_own_runs_tools(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATOON_URL", url)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import fastapi_integration  # type: ignore[import-not-found]

    with serving(fastapi_integration.app, has_lifespan=True) as own, httpx.Client() as http:
        told = http.post(f"{own}/ask", json={"query": "none"}).json()
        assert told["tool"] is None
        assert len(told["likely"]) > 0
        # the model of this server says again what it is told, arguments and all
        query = 'check_inventory\n{"product": "iPhone 16 Pro"}'
        sure = http.post(f"{own}/ask", json={"query": query}).json()
        assert sure["tool"] == "check_inventory"
        assert sure["result"] == {"product": "iPhone 16 Pro", "in_stock": 45}

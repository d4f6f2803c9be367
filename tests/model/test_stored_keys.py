"""Language models' keys that a server keeps."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from ratoon.config import Settings
from tests.model.live import live
from tests.server.scripted import serving
from tests.server.test_query import TOOLS, Upstream

pytestmark = pytest.mark.model

KEY = "sk-stored-key-98765"


def test_they_outlive_the_server_and_no_file_shows_them(cut1_path: Path, tmp_path: Path) -> None:
    settings = Settings(model=str(cut1_path), n_ctx=2048, cache_dir=tmp_path)
    upstream = Upstream()
    upstream.turns = [{"text": "Hi."}]
    with serving(upstream.app) as base:
        access = {"provider": "openai", "api_key": KEY, "base_url": f"{base}/v1"}
        with live(settings) as running, httpx.Client(base_url=running.url, timeout=60) as http:
            http.post("/domains/shop/tools", json={"tools": TOOLS}).raise_for_status()
            http.post("/admin/llm-config/shop", json=access).raise_for_status()
        with live(settings) as running, httpx.Client(base_url=running.url, timeout=60) as http:
            (name,) = http.get("/admin/llm-config").json()["configs"]
            assert name == "shop"
            told = http.post("/query", json={"domain_id": "shop", "query": "Where is order 7?"})
            assert told.json()["final_response"] == "Hi."
    assert upstream.headers[0]["authorization"] == f"Bearer {KEY}"
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        assert KEY.encode() not in file.read_bytes(), file
    (secret,) = tmp_path.rglob("secrets.key")
    assert secret.stat().st_mode & 0o077 == 0

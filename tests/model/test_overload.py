"""Far more clients than sequences: all are served or told to come again, and nothing piles up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from ratoon.bench.sessions import prose
from ratoon.config import Settings
from tests.model.live import live

pytestmark = pytest.mark.model

N_CLIENTS = 200
N_SLOTS = 8
N_QUEUE = 60
PAUSE_S = 0.2
MAX_GROWTH = 48 << 20


def resident_bytes() -> int:
    """Of this process, where the server runs, too."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


async def insist(http: httpx.AsyncClient, client: int, round_: int) -> int:
    """Ask until answered; returns how often the server was too busy."""
    content = prose(client, f"round {round_}", 40 + client % 40)
    body = {
        "model": "m",
        "max_tokens": 4,
        "messages": [{"role": "user", "content": content}],
    }
    n_refused = 0
    while (answer := await http.post("/v1/messages", json=body)).status_code == 529:
        assert answer.json()["error"]["type"] == "overloaded_error"
        assert int(answer.headers["retry-after"]) > 0
        n_refused += 1
        await asyncio.sleep(PAUSE_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["output_tokens"] > 0
    return n_refused


async def crowd(url: str, round_: int) -> list[int]:
    limits = httpx.Limits(max_connections=N_CLIENTS, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        return await asyncio.gather(*(insist(http, n, round_) for n in range(N_CLIENTS)))


def test_two_hundred_clients_share_eight_slots(cut1_path: Path) -> None:
    settings = Settings(
        model=str(cut1_path),
        n_ctx=512,
        n_cells=1024,  # about four prompts: requests are preempted, too
        n_seq=N_SLOTS,
        max_queue=N_QUEUE,
        host_bytes=16 << 20,
        disk_bytes=0,
        replay_bytes=1 << 20,
    )
    with live(settings) as running:
        refused = asyncio.run(crowd(running.url, 0))
        assert sum(refused) > 0  # the queue is bounded
        warm = resident_bytes()
        for round_ in (1, 2):
            asyncio.run(crowd(running.url, round_))
        running.wait_until_idle()
        assert resident_bytes() - warm < MAX_GROWTH


def test_who_waits_is_served_in_turn(cut1_path: Path) -> None:
    """Late requests do not overtake early ones: none starves."""
    settings = Settings(model=str(cut1_path), n_ctx=512, n_seq=N_SLOTS, disk_bytes=0)
    order: list[int] = []

    async def one(http: httpx.AsyncClient, client: int) -> None:
        await asyncio.sleep(0.004 * client)
        await insist(http, client, 0)
        order.append(client)

    async def all_of_them(url: str) -> None:
        limits = httpx.Limits(max_connections=N_CLIENTS, max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
            await asyncio.gather(*(one(http, n) for n in range(N_CLIENTS)))

    with live(settings) as running:
        asyncio.run(all_of_them(running.url))
    late_by = [place - client for place, client in enumerate(order)]
    # connections are opened in an order of their own, so some noise is the client's
    assert max(late_by) <= N_CLIENTS // 2

"""A client that waits hears pings; a client that leaves stops its request."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any
from urllib.parse import urlsplit

import anthropic
import httpx
import pytest

from ratoon.api.service import Service
from ratoon.chat.render import Prompt
from ratoon.engine.events import Finished, FinishReason, Started, Token
from tests.server.scripted import (
    ByteRenderer,
    Script,
    ScriptedEngine,
    endless,
    play,
    sse_events,
    stall,
)
from tests.server.test_messages import BODY

prefilling = play(Started(5, 0, "cold"), 60.0)


def open_request(
    url: str, body: bytes, n_sent: int | None = None, path: str = "/v1/messages"
) -> socket.socket:
    host, port = urlsplit(url).netloc.split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:n_sent])
    return connection


def reset(connection: socket.socket) -> None:
    """Close with RST, as a killed process may."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("script", [stall, prefilling, endless], ids=["queue", "prefill", "decode"])
def test_a_hang_up_cancels_at_once(
    url: str, engine: ScriptedEngine, script: Script, is_stream: bool, is_reset: bool
) -> None:
    engine.script = script
    connection = open_request(url, json.dumps(BODY | {"stream": is_stream}).encode())
    engine.wait_for(lambda e: e.submitted)
    if is_stream:
        connection.recv(100)
    if is_reset:
        reset(connection)
    else:
        connection.close()
    engine.wait_for(lambda e: e.cancelled)
    assert engine.cancelled == [engine.submitted[0].id]


def test_a_reader_that_stops_and_leaves(url: str, engine: ScriptedEngine) -> None:
    def flood(request: object) -> object:
        yield Started(5, 0, "cold")
        for _ in range(3000):
            yield Token(0, b"x" * 1000)
        yield 60.0

    engine.script = flood  # type: ignore[assignment]
    connection = open_request(url, json.dumps(BODY | {"stream": True}).encode())
    connection.recv(100)
    engine.wait_for(lambda e: e.submitted)
    reset(connection)
    engine.wait_for(lambda e: e.cancelled)


def test_leaving_while_the_prompt_is_rendered(
    url: str, engine: ScriptedEngine, renderer: ByteRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = renderer.render

    def slowly(request: Any, *, hoist: bool = True, thinks: bool = False) -> Prompt:
        time.sleep(0.3)
        return render(request, hoist=hoist, thinks=thinks)

    monkeypatch.setattr(renderer, "render", slowly)
    engine.script = endless
    connection = open_request(url, json.dumps(BODY).encode())
    time.sleep(0.1)
    connection.close()
    engine.wait_for(lambda e: e.submitted)
    engine.wait_for(lambda e: e.cancelled)


def test_leaving_within_the_body_starts_nothing(
    url: str, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    open_request(url, json.dumps(BODY).encode(), n_sent=20).close()
    assert httpx.get(f"{url}/health").status_code == 200
    assert engine.submitted == []
    assert caplog.text == ""


def test_the_official_client_leaves_early(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = endless
    body: Any = BODY
    with client.messages.stream(**body) as stream:
        assert set(next(iter(stream.text_stream))) == {"x"}
    engine.wait_for(lambda e: e.cancelled)


def test_hang_ups_are_counted(url: str, engine: ScriptedEngine, service: Service) -> None:
    engine.script = endless
    connection = open_request(url, json.dumps(BODY).encode())
    engine.wait_for(lambda e: e.submitted)
    connection.close()
    engine.wait_for(lambda e: e.cancelled)
    line = b'ratoon_requests_total{stop_reason="cancelled"} 1.0'
    engine.wait_for(lambda e: line in service.metrics.render())


def test_pings_while_queued_and_prefilling(http: httpx.Client, engine: ScriptedEngine) -> None:
    end = (Token(0, b"x"), Finished(FinishReason.STOP, 1))
    engine.script = play(0.5, Started(5, 0, "cold"), 0.35, *end)
    with http.stream("POST", "/v1/messages", json=BODY | {"stream": True}) as response:
        kinds = [str(e["type"]) for e in sse_events(response.read().decode())]
    start = kinds.index("message_start")
    assert set(kinds[:start]) == {"ping"}
    assert 2 <= start <= 5
    block = kinds.index("content_block_start")
    assert set(kinds[start + 1 : block]) == {"ping"}
    assert 3 <= block - start - 1 <= 5
    assert "ping" not in kinds[block:]


def test_pings_while_text_is_held_back(http: httpx.Client, engine: ScriptedEngine) -> None:
    held = [step for _ in range(8) for step in (Token(0, b"S"), 0.05)]
    engine.script = play(Started(5, 0, "cold"), *held, Finished(FinishReason.STOP, 8))
    body = BODY | {"stream": True, "stop_sequences": ["S" * 20]}
    kinds = [e["type"] for e in sse_events(http.post("/v1/messages", json=body).text)]
    assert kinds[: kinds.index("content_block_start")].count("ping") >= 3


def test_headers_come_while_the_request_is_queued(
    http: httpx.Client, engine: ScriptedEngine
) -> None:
    engine.script = stall
    with http.stream("POST", "/v1/messages", json=BODY | {"stream": True}) as response:
        assert response.status_code == 200
        assert next(response.iter_text()) == 'event: ping\ndata: {"type":"ping"}\n\n'
    engine.wait_for(lambda e: e.cancelled)

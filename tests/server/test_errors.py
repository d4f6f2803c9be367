"""Every error has Anthropic's shape and makes the official client raise the right class."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from pydantic import ValidationError

from ratoon import wire
from ratoon.api.app import create_app
from ratoon.api.service import Service, key_ring
from ratoon.engine.events import Failed, Finished, FinishReason, Started, Token
from ratoon.errors import (
    InternalError,
    NotFound,
    Overloaded,
    PermissionDenied,
    PromptTooLong,
    RateLimited,
    RatoonError,
)
from ratoon.keys import Role
from tests.server.scripted import ByteRenderer, ScriptedEngine, Switch, play, sse_events
from tests.server.test_messages import BODY, ask


def error_of(response: httpx.Response) -> dict[str, str]:
    """The error, after checking the shape around it."""
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    error: dict[str, str] = body["error"]
    return error


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


WRONG_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages: Input should be a valid array"),
    ({"messages": []}, "messages: at least one message is required"),
    ({"messages": "x"}, "messages: Input should be a valid array"),
    ({"model": 5}, "model: Input should be a valid string"),
    ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": 1.5}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
    ({"stream": "yes"}, "stream: Input should be a valid boolean"),
    ({"temperature": "hot"}, "temperature: Input should be a valid number"),
    ({"temperature": 1.5}, "temperature: range: 0..1"),
    ({"temperature": -0.1}, "temperature: range: 0..1"),
    ({"top_p": 2}, "top_p: range: 0..1"),
    ({"top_k": -1}, "top_k: Input should be greater than or equal to 0"),
    ({"stop_sequences": [" "]}, "stop_sequences: each stop sequence must contain non-whitespace"),
    ({"stop_sequences": [""]}, "stop_sequences: each stop sequence must contain non-whitespace"),
    ({"stop_sequences": [1]}, "stop_sequences.0: Input should be a valid string"),
    ({"system": 1}, "system: Input should be a valid string"),
    ({"system": [{"type": "text"}]}, "system.0.text: Field required"),
    ({"tools": [{}]}, "tools.0.name: Field required"),
    ({"messages": [{"role": 5, "content": ""}]}, "messages.0.role: Input should be 'user', "),
    ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
    (user(5), "messages.0.content: Input should be a valid string"),
    (user([{"type": "text"}]), "messages.0.content.0.text.text: Field required"),
    (user([{"type": "hologram"}]), "messages.0.content.0: Input tag 'hologram' found using 'type'"),
    (user([{"text": "x"}]), "messages.0.content.0: Unable to extract tag using discriminator"),
    (
        user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text"}]}]),
        "messages.0.content.0.tool_result.content.0.text.text: Field required",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG_FIELDS)
def test_wrong_fields(http: httpx.Client, change: dict[str, Any], message: str) -> None:
    response = http.post("/v1/messages", json=BODY | change)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(message)


@pytest.mark.parametrize("name", ["model", "messages", "max_tokens"])
def test_missing_fields(http: httpx.Client, name: str) -> None:
    body = {key: value for key, value in BODY.items() if key != name}
    response = http.post("/v1/messages", json=body)
    assert error_of(response)["message"] == f"{name}: Field required"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"5", b"\xff\xfe", b"[" * 100_000, b'{"model": NaN}']
)
def test_bodies_that_are_no_requests(http: httpx.Client, path: str, raw: bytes) -> None:
    response = http.post(path, content=raw)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


def test_a_nan_is_out_of_range(http: httpx.Client) -> None:
    raw = json.dumps(BODY | {"temperature": float("nan")})
    assert http.post("/v1/messages", content=raw).status_code == 400


def test_broken_json_is_named(http: httpx.Client) -> None:
    message = error_of(http.post("/v1/messages", content=b'{"model": '))["message"]
    assert message.startswith("The request body is not valid JSON: EOF while parsing")


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("n_bytes", [1_000_001, 3_000_000, 20_000_000])
def test_a_body_over_the_limit(url: str, is_chunked: bool, n_bytes: int) -> None:
    parts = (b"x" * 65_536 for _ in range(n_bytes // 65_536 + 1))
    with httpx.Client(base_url=url, timeout=60) as http:
        try:
            response = http.post("/v1/messages", content=parts if is_chunked else b"x" * n_bytes)
        except httpx.WriteError:
            assert n_bytes > 4_000_000, "only a far too large body may lose its answer"
            return
    assert response.status_code == 413
    error = error_of(response)
    assert error == {"type": "request_too_large", "message": "Request exceeds the maximum size"}


def test_a_body_of_just_the_limit(http: httpx.Client) -> None:
    raw = json.dumps(BODY).encode()
    assert http.post("/v1/messages", content=raw.ljust(1_000_000)).status_code == 200


def test_the_client_sees_a_body_over_the_limit(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client, **user("x" * 1_500_000))
    assert caught.value.status_code == 413
    assert str(caught.value.type) == "request_too_large"


def test_a_prompt_over_the_window(client: anthropic.Anthropic, engine: ScriptedEngine) -> None:
    n_prompt = client.messages.count_tokens(model="m", messages=BODY["messages"]).input_tokens
    engine.n_ctx = n_prompt
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client)
    assert caught.value.api_message == (
        f"prompt is too long: {n_prompt} tokens > {n_prompt - 1} maximum"
    )
    engine.n_ctx = n_prompt + 1
    assert ask(client).usage.output_tokens == 1


ENGINE_ERRORS: list[tuple[RatoonError, type[anthropic.APIStatusError]]] = [
    (PromptTooLong(9, 8), anthropic.BadRequestError),
    (PermissionDenied("no"), anthropic.PermissionDeniedError),
    (NotFound("gone"), anthropic.NotFoundError),
    (RateLimited("slow down"), anthropic.RateLimitError),
    (InternalError("broken"), anthropic.InternalServerError),
    (Overloaded("busy"), anthropic.InternalServerError),
]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(("error", "raised"), ENGINE_ERRORS)
def test_errors_before_the_first_byte(
    client: anthropic.Anthropic,
    engine: ScriptedEngine,
    error: RatoonError,
    raised: type[anthropic.APIStatusError],
    is_stream: bool,
) -> None:
    engine.script = play(Failed(error))
    with pytest.raises(raised) as caught:
        ask(client, stream=is_stream)
    assert caught.value.status_code == error.status
    assert caught.value.type == error.kind
    assert caught.value.api_message == str(error)
    assert caught.value.request_id is not None


def test_a_full_queue(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.is_full = True
    response = http.post("/v1/messages", json=BODY | {"stream": True})
    assert response.status_code == 529
    assert response.headers["retry-after"] == "5"
    assert error_of(response)["type"] == "overloaded_error"


def test_an_error_within_the_stream(http: httpx.Client, engine: ScriptedEngine) -> None:
    steps = (Started(5, 0, "cold"), Token(0, b"x"), Failed(InternalError("lost")))
    engine.script = play(*steps)
    response = http.post("/v1/messages", json=BODY | {"stream": True})
    assert response.status_code == 200
    last = sse_events(response.text)[-1]
    assert last["error"] == {"type": "api_error", "message": "lost"}
    assert last["request_id"] == response.headers["request-id"]
    assert 'ratoon_errors_total{type="api_error"} 1.0' in http.get("/metrics").text


def test_the_client_raises_an_error_within_the_stream(
    client: anthropic.Anthropic, engine: ScriptedEngine
) -> None:
    engine.script = play(Started(5, 0, "cold"), Token(0, b"x"), Failed(Overloaded("busy")))
    body: Any = BODY
    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(**body) as stream,
    ):
        stream.until_done()
    assert caught.value.type == "overloaded_error"


def test_a_late_failure_comes_as_an_event(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = play(0.5, Failed(Overloaded("busy")))
    response = http.post("/v1/messages", json=BODY | {"stream": True})
    kinds = [e["type"] for e in sse_events(response.text)]
    assert kinds[0] == "ping"
    assert kinds[-1] == "error"


def test_a_request_the_server_cancels(http: httpx.Client, engine: ScriptedEngine) -> None:
    engine.script = play(Started(5, 0, "cold"), Finished(FinishReason.CANCELLED, 0))
    assert http.post("/v1/messages", json=BODY).status_code == 500


class BuggyRenderer(ByteRenderer):
    def render(self, request: Any, *, hoist: bool = True, thinks: bool = False) -> Any:
        raise ZeroDivisionError("with a secret")


def test_a_bug_is_a_500_that_tells_nothing(
    http: httpx.Client,
    switch: Switch,
    engine: ScriptedEngine,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch.app = create_app(Service(engine, BuggyRenderer()))
    response = http.post("/v1/messages", json=BODY)
    assert response.status_code == 500
    assert error_of(response) == {"type": "api_error", "message": "Internal server error"}
    assert [record.name for record in caplog.records] == ["ratoon.api.errors"]
    assert http.get("/health").status_code == 200


def test_a_bug_within_the_stream(
    http: httpx.Client, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    nonsense: Any = Token(0, None)  # type: ignore[arg-type]
    engine.script = play(Started(5, 0, "cold"), nonsense)
    response = http.post("/v1/messages", json=BODY | {"stream": True})
    last = sse_events(response.text)[-1]
    assert last["error"] == {"type": "api_error", "message": "Internal server error"}
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/v1/nothing", 404, "not_found_error"),
        ("POST", "/v1/messages/", 404, "not_found_error"),
        ("GET", "/docs", 404, "not_found_error"),
        ("GET", "/openapi.json", 404, "not_found_error"),
        ("GET", "/v1/models/gpt-9", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/models", 405, "invalid_request_error"),
        ("GET", "/v1/models?limit=0", 400, "invalid_request_error"),
        ("GET", "/v1/models?limit=x", 400, "invalid_request_error"),
    ],
)
def test_wrong_routes(http: httpx.Client, method: str, path: str, status: int, kind: str) -> None:
    response = http.request(method, path)
    assert response.status_code == status
    assert error_of(response)["type"] == kind


KEY = "sk-sëcret".encode()


def test_a_million_wrong_items_are_refused_at_the_first(http: httpx.Client) -> None:
    body = '{"model": "x", "max_tokens": 1, "messages": [' + "0," * 400_000 + "0]}"
    response = http.post("/v1/messages", content=body)
    assert response.status_code == 400
    assert error_of(response)["message"].startswith("messages.0: ")
    with pytest.raises(ValidationError) as caught:
        wire.MessagesRequest.model_validate_json(body)
    assert caught.value.error_count() == 1


def test_too_many_stop_sequences(http: httpx.Client) -> None:
    body = BODY | {"stop_sequences": ["x"] * 1001}
    response = http.post("/v1/messages", json=body)
    assert error_of(response)["message"] == "stop_sequences: at most 1000 are supported"


@pytest.fixture
def locked(http: httpx.Client, switch: Switch, engine: ScriptedEngine) -> httpx.Client:
    switch.app = create_app(Service(engine, ByteRenderer(), keys=key_ring(KEY.decode())))
    return http


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({}, "x-api-key header is required"),
        ({"x-api-key": ""}, "x-api-key header is required"),
        ({"authorization": "Basic abc"}, "x-api-key header is required"),
        ({"x-api-key": "wrong"}, "invalid x-api-key"),
        ({"authorization": "Bearer wrong"}, "invalid x-api-key"),
    ],
)
def test_wrong_keys(locked: httpx.Client, headers: dict[str, str], message: str) -> None:
    for path in ("/v1/models", "/metrics", "/no/such/route"):
        response = locked.get(path, headers=headers)
        assert response.status_code == 401
        assert error_of(response) == {"type": "authentication_error", "message": message}


@pytest.mark.parametrize(
    "headers",
    [
        {b"x-api-key": KEY},
        {b"authorization": b"Bearer " + KEY},
        {b"authorization": b"bearer  " + KEY},
        {b"x-api-key": b"stale", b"authorization": b"Bearer " + KEY},
        {b"x-api-key": KEY, b"authorization": b"Bearer stale"},
    ],
)
def test_the_right_key(
    locked: httpx.Client, headers: dict[bytes, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    assert locked.get("/v1/models", headers=headers).status_code == 200
    assert KEY.decode() not in caplog.text


def test_open_paths_need_no_key(locked: httpx.Client) -> None:
    assert locked.get("/health").status_code == 200
    assert locked.head("/").status_code == 200
    assert locked.head("/api/hello").status_code == 200


def test_the_client_sees_a_wrong_key(locked: httpx.Client) -> None:
    with (
        anthropic.Anthropic(base_url=str(locked.base_url), api_key="wrong") as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        ask(client)


def test_the_key_is_not_in_the_settings_text() -> None:
    ring = key_ring("secret")
    key = ring.find(b"secret")
    assert key is not None
    assert key.role is Role.ADMIN
    assert "secret" not in f"{key} {vars(ring)}"
    assert key.digest not in repr(key)

"""Queries answered by language models behind the official SDKs, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from ratoon.build import build
from ratoon.config import Settings
from ratoon.errors import ConfigError
from tests.model.live import live
from tests.server.scripted import serving

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}},
    "required": ["id"],
    "additionalProperties": False,
}
TOOLS = [
    {"name": "get_order", "description": "One order.", "input_schema": ORDER},
    {"name": "get.orders:all", "description": "All orders.", "input_schema": {"type": "object"}},
    {"name": "cancel_order", "description": "Cancels.", "input_schema": ORDER},
]


class Upstream:
    """A language model's server that plays scripted turns, and a tool's server."""

    def __init__(self) -> None:
        self.turns: list[Any] = []
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.ran: list[dict[str, Any]] = []
        self.pause_s = 0.0
        self.result: Response = JSONResponse({"state": "sent"})
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self.openai, methods=["POST"]),
                Route("/v1/messages", self.anthropic, methods=["POST"]),
                Route("/execute", self.execute, methods=["POST"]),
                Route("/away/v1/messages", self.away, methods=["POST"]),
            ]
        )

    async def openai(self, http: Request) -> Response:
        turn = await self._next(http)
        if isinstance(turn, str):
            return Response(turn, media_type="text/html")
        if isinstance(turn, int):
            return JSONResponse({"error": {"message": "sk-secret is wrong"}}, turn)
        message: dict[str, Any] = {"role": "assistant", "content": turn.get("text")}
        if turn.get("thinking"):
            message["reasoning_content"] = turn["thinking"]
        if calls := turn.get("calls"):
            message["tool_calls"] = [
                {
                    "id": f"call_{n}",
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for n, (name, arguments) in enumerate(calls)
            ]
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage: Any = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        body = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [choice],
            "usage": turn.get("usage", usage),
        }
        return Response(json.dumps(body), media_type="application/json")

    async def anthropic(self, http: Request) -> Response:
        turn = await self._next(http)
        if isinstance(turn, str):
            return Response(turn, media_type="text/html")
        if isinstance(turn, int):
            error = {"type": "api_error", "message": "sk-secret is wrong"}
            return JSONResponse({"type": "error", "error": error}, turn)
        content: list[dict[str, Any]] = []
        if turn.get("thinking"):
            thought = {"type": "thinking", "thinking": turn["thinking"], "signature": "s"}
            content.append(thought)
        if turn.get("text"):
            content.append({"type": "text", "text": turn["text"]})
        for n, (name, arguments) in enumerate(turn.get("calls", ())):
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
            content.append({"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": value})
        body = {
            "id": "msg",
            "type": "message",
            "role": "assistant",
            "model": "scripted",
            "content": content,
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": turn.get("usage", {"input_tokens": 3, "output_tokens": 2}),
        }
        return Response(json.dumps(body), media_type="application/json")

    async def away(self, http: Request) -> Response:
        return RedirectResponse("/v1/messages", 307)

    async def execute(self, http: Request) -> Response:
        self.ran.append(await http.json())
        return self.result

    async def _next(self, http: Request) -> Any:
        self.seen.append(await http.json())
        self.headers.append(dict(http.headers))
        await asyncio.sleep(self.pause_s)
        return self.turns.pop(0)


class Bench:
    """A server under test and what is around it."""

    def __init__(self, http: httpx.Client, upstream: Upstream, upstream_url: str) -> None:
        self.http = http
        self.upstream = upstream
        self.url = upstream_url

    def ask(self, query: str, **more: Any) -> dict[str, Any]:
        answer = self.post(query, **more)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    def post(self, query: str, **more: Any) -> httpx.Response:
        body = {"domain_id": "shop", "query": query, **more}
        return self.http.post("/query", json=body)

    def openai(self, **more: Any) -> dict[str, Any]:
        own = {"llm_api_key": "sk-request-key-0001", "llm_base_url": f"{self.url}/v1"}
        return {"llm_provider": "openai", **own, **more}

    def claude(self, **more: Any) -> dict[str, Any]:
        own = {"llm_api_key": "sk-request-key-0001", "llm_base_url": self.url}
        return {"llm_provider": "claude", **own, **more}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, str, Upstream]]:
    """The dummy model says again what the user said, so a query that is a tool's name is sure."""
    upstream = Upstream()
    settings = Settings(
        model="dummy", max_tool_calls=3, query_timeout_s=4, ping_s=0.1, enable_thinking=True
    )
    with ExitStack() as stack:
        url = stack.enter_context(live(settings)).url
        upstream_url = stack.enter_context(serving(upstream.app))
        yield url, upstream_url, upstream


@pytest.fixture
def bench(running: tuple[str, str, Upstream]) -> Iterator[Bench]:
    url, upstream_url, upstream = running
    upstream.turns, upstream.seen, upstream.headers, upstream.ran = [], [], [], []
    upstream.result, upstream.pause_s = JSONResponse({"state": "sent"}), 0.0
    with httpx.Client(base_url=url, timeout=60) as http:
        assert http.post("/domains/shop/tools", json={"tools": TOOLS}).status_code == 200
        for name in http.get("/admin/llm-config").json()["configs"]:
            http.delete(f"/admin/llm-config/{name}")
        yield Bench(http, upstream, upstream_url)


def test_a_sure_tool_is_filled_in_run_and_told_about(bench: Bench) -> None:
    bench.upstream.turns = [
        {"calls": [("get_order", '{"id": 7}')]},
        {"text": "Order 7 is sent."},
    ]
    told = bench.ask("get_order", tool_executor=f"{bench.url}/execute", **bench.openai())
    assert told["final_response"] == "Order 7 is sent."
    assert told["confidence_level"] == "high"
    assert bench.upstream.ran == [{"tool": "get_order", "arguments": {"id": 7}}]
    (call,) = told["tool_calls"]
    assert (call["tool_name"], call["arguments"]) == ("get_order", {"id": 7})
    assert call["result"] == {"state": "sent"}
    asked, then = bench.upstream.seen
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["get_order"]
    assert asked["tool_choice"]["function"]["name"] == "get_order"
    assert then["tool_choice"] == "auto"
    assert then["messages"][-1] == {
        "role": "tool",
        "tool_call_id": "call_0",
        "content": '{"state": "sent"}',
    }
    timings = told["timings"]
    total = timings.pop("total_ms")
    assert sum(timings.values()) == pytest.approx(total, abs=0.02)
    assert {"route_ms", "param_extraction_ms", "execute_ms", "synthesis_ms"} <= timings.keys()


def test_claude_speaks_its_own_api(bench: Bench) -> None:
    bench.upstream.turns = [
        {"calls": [("get_orders_all", "{}")]},
        {"text": "None.", "thinking": "Hm."},
    ]
    told = bench.ask("get.orders:all", enable_thinking=True, **bench.claude(llm_model="big"))
    assert told["final_response"] == "None."
    assert told["thinking"] == "Hm."
    asked, then = bench.upstream.seen
    assert asked["model"] == "big"
    assert asked["tool_choice"]["type"] == "tool"
    assert asked["tool_choice"]["name"] == "get_orders_all"
    assert "thinking" not in asked
    assert then["thinking"]["type"] == "enabled"
    assert then["messages"][-1]["content"][0]["type"] == "tool_result"
    headers = bench.upstream.headers[0]  # which of the two is the SDK's choice
    assert "sk-request-key-0001" in headers.get("x-api-key", headers.get("authorization", ""))


@pytest.mark.parametrize("is_claude", [False, True])
def test_names_that_an_api_does_not_take_come_back_whole(bench: Bench, is_claude: bool) -> None:
    bench.upstream.turns = [{"calls": [("get_orders_all", "{}")]}, {"text": "Done."}]
    kind = bench.claude if is_claude else bench.openai
    told = bench.ask("get.orders:all", **kind())
    assert "get.orders" not in json.dumps(bench.upstream.seen[0]["tools"])
    assert [call["tool_name"] for call in told["tool_calls"]] == ["get.orders:all"]
    assert told["tool_calls"][0]["result"]["mock"] is True


def test_an_unsure_choice_is_the_language_model_s(bench: Bench) -> None:
    bench.upstream.turns = [{"text": "Which order do you mean?"}]
    told = bench.ask("get", **bench.openai())
    assert told["confidence_level"] == "low"
    (asked,) = bench.upstream.seen
    assert len(asked["tools"]) > 1
    assert asked["tool_choice"] == "auto"
    assert told["final_response"] == "Which order do you mean?"
    assert told["num_tool_calls"] == 0


def test_without_a_tool_the_language_model_answers_alone(bench: Bench) -> None:
    bench.upstream.turns = [{"text": "Hello!"}]
    told = bench.ask("none", llm_system_prompt="Be kind.", **bench.openai())
    assert told["confidence_level"] == "no_tool"
    (asked,) = bench.upstream.seen
    assert "tools" not in asked
    assert asked["messages"][0] == {"role": "system", "content": "Be kind."}
    assert told["route"]["tool_name"] is None


def test_wrong_arguments_are_told_and_not_run(bench: Bench) -> None:
    bench.upstream.turns = [
        {"calls": [("get_order", '{"id": "seven"}')]},
        {"calls": [("drop_tables", "{}"), ("get_order", "{broken")]},
        {"text": "I can't."},
    ]
    told = bench.ask("get_order", tool_executor=f"{bench.url}/execute", **bench.openai())
    assert bench.upstream.ran == []
    errors = [call["error"] for call in told["tool_calls"]]
    assert "is not of type 'integer'" in errors[0]
    assert "there is no tool 'drop_tables'" in errors[1]
    assert "not a JSON object" in errors[2]
    assert "error" in bench.upstream.seen[1]["messages"][-1]["content"]
    assert bench.upstream.seen[2]["tool_choice"] == "none"  # three calls are the limit


def test_a_second_tool_may_follow_the_first(bench: Bench) -> None:
    bench.upstream.turns = [
        {"calls": [("get_order", '{"id": 7}')]},
        {"calls": [("cancel_order", '{"id": 7}')]},
        {"text": "Order 7 was sent; I cancelled it."},
    ]
    told = bench.ask("get_order", tool_executor=f"{bench.url}/execute", **bench.openai())
    assert [ran["tool"] for ran in bench.upstream.ran] == ["get_order", "cancel_order"]
    assert [call.get("error") for call in told["tool_calls"]] == [None, None]
    shown = [len(seen["tools"]) for seen in bench.upstream.seen]
    assert shown == [1, len(TOOLS), len(TOOLS)]


@pytest.mark.parametrize("kind", ["openai", "claude"])
def test_what_the_operator_says_of_the_answer_reaches_each_turn(bench: Bench, kind: str) -> None:
    def systems() -> list[str]:
        return [
            seen["system"] if kind == "claude" else seen["messages"][0]["content"]
            for seen in bench.upstream.seen
        ]

    turns = [{"calls": [("get_order", '{"id": 7}')]}, {"text": "Sent."}]
    own = bench.openai() if kind == "openai" else bench.claude()
    bench.upstream.turns = list(turns)
    bench.ask("get_order", llm_system_prompt="Be kind.", **own)
    assert len(systems()) == 2
    assert all("Be kind." in text for text in systems())
    stored = {"provider": kind, "api_key": "sk-stored-key-9876", "base_url": own["llm_base_url"]}
    bench.http.post("/admin/llm-config/shop", json={**stored, "system_prompt": "Be brief."})
    bench.upstream.turns, bench.upstream.seen = list(turns), []
    bench.ask("get_order")
    assert len(systems()) == 2
    assert all("Be brief." in text for text in systems())
    bench.upstream.turns, bench.upstream.seen = [{"text": "Sent."}], []
    body = {"tool_id": "shop", "query": "get_order"}
    told = bench.http.post("/v2/pipeline", json=body).json()
    assert told["llm_response"] == "Sent."
    assert all("Be brief." in text for text in systems())


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("openai", "/v1"),
        ("openai", "/v1/"),
        ("openai", "/v1/chat/completions"),
        ("claude", ""),
        ("claude", "/"),
        ("claude", "/v1"),
        ("claude", "/v1/messages"),
    ],
)
def test_an_address_may_be_given_whole_or_in_part(bench: Bench, kind: str, path: str) -> None:
    bench.upstream.turns = [{"text": "Hi."}]
    own = bench.openai if kind == "openai" else bench.claude
    assert bench.ask("none", **own(llm_base_url=bench.url + path))["final_response"] == "Hi."


def test_calls_end_at_the_limit(bench: Bench) -> None:
    bench.upstream.turns = [
        *({"calls": [("get_order", json.dumps({"id": n}))]} for n in range(3)),
        {"calls": [("get_order", '{"id": 4}')], "text": "Enough."},
    ]
    told = bench.ask("get_order", **bench.openai())
    assert told["num_tool_calls"] == 3
    assert told["final_response"] == "Enough."


@pytest.mark.parametrize("is_claude", [False, True])
def test_a_call_with_a_result_is_not_run_again(bench: Bench, is_claude: bool) -> None:
    again = {"calls": [("get_order", '{"id": 1}')]}
    bench.upstream.turns = [again, {"calls": again["calls"] * 2}, {"text": "It is sent."}]
    told = bench.ask(
        "get_order",
        tool_executor=f"{bench.url}/execute",
        **(bench.claude() if is_claude else bench.openai()),
    )
    assert len(bench.upstream.ran) == 1
    assert [bool(call.get("error")) for call in told["tool_calls"]] == [False, True, True]
    assert told["final_response"] == "It is sent."
    forced, free, barred = bench.upstream.seen
    if is_claude:
        assert forced["tool_choice"]["disable_parallel_tool_use"]
        assert (free["tool_choice"], barred["tool_choice"]) == ({"type": "auto"}, {"type": "none"})
    else:
        assert forced["parallel_tool_calls"] is False
        assert (free["tool_choice"], barred["tool_choice"]) == ("auto", "none")


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Response("no", 500), "answered 500"),
        (Response("<html>"), "not JSON"),
        (RedirectResponse("/execute", 307), "answered 307"),
        (Response("x" * (1 << 20) + "y"), "over 1048576 bytes"),
        (Response('{"t": "\\ud83d"}'), "not JSON"),
        (Response('{"price": NaN}'), "not JSON"),
        (Response("[" * 100_000), "not JSON"),
    ],
)
def test_a_tool_that_fails_is_told_to_the_model(
    bench: Bench, result: Response, reason: str
) -> None:
    bench.upstream.result = result
    bench.upstream.turns = [{"calls": [("get_order", '{"id": 7}')]}, {"text": "It failed."}]
    told = bench.ask("get_order", tool_executor=f"{bench.url}/execute", **bench.openai())
    assert reason in told["tool_calls"][0]["result"]["error"]
    assert told["final_response"] == "It failed."


def test_a_stream_tells_each_step(bench: Bench) -> None:
    bench.upstream.turns = [{"calls": [("get_order", '{"id": 7}')]}, {"text": "Fine."}]
    answer = bench.post("get_order", stream=True, **bench.openai())
    events = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
    assert events == ["route", "result", "answer"]
    data = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert data[-1]["final_response"] == "Fine."
    bench.upstream.turns = [401]
    broken = bench.post("get_order", stream=True, **bench.openai())
    assert broken.status_code == 200
    assert "event: error" in broken.text
    assert "sk-" not in broken.text


def test_a_stream_is_never_long_silent(bench: Bench) -> None:
    bench.upstream.pause_s = 0.3
    bench.upstream.turns = [{"text": "Fine."}]
    answer = bench.post("none", stream=True, **bench.openai())
    assert ": ping\n\n" in answer.text
    assert answer.text.count("event: ") == 2


def test_a_query_ends_in_time(bench: Bench) -> None:
    bench.upstream.pause_s = 10
    bench.upstream.turns = [{"text": "Too late."}]
    answer = bench.post("none", **bench.openai())
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "timeout_error"


def test_the_language_model_reasons_where_it_is_asked_to(bench: Bench) -> None:
    bench.upstream.turns = [{"text": "Hi."}] * 3
    for asked in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        bench.ask("none", **bench.claude(**asked))
    assert ["thinking" in seen for seen in bench.upstream.seen] == [True, False, True]


def test_servers_in_openais_form_reason_too(bench: Bench) -> None:
    bench.upstream.turns = [{"text": "Hi.", "thinking": "Hm."}, {"text": "Hi."}]
    told = bench.ask("none", **bench.openai(enable_thinking=True))
    assert told["thinking"] == "Hm."
    assert "thinking" not in bench.ask("none", **bench.openai(enable_thinking=False))
    assert [seen.get("enable_thinking") for seen in bench.upstream.seen] == [True, None]


@pytest.mark.parametrize("status", [401, 404])
def test_a_language_model_that_refuses_is_told_without_secrets(bench: Bench, status: int) -> None:
    for kind in (bench.openai, bench.claude):
        bench.upstream.turns = [status]
        answer = bench.post("get_order", **kind())
        assert answer.status_code == 502
        assert answer.json()["error"]["message"].endswith(f"answered {status}")
        assert "sk-" not in answer.text


@pytest.mark.parametrize("is_claude", [False, True])
def test_a_server_that_answers_loosely_is_understood_or_told(bench: Bench, is_claude: bool) -> None:
    kind = bench.claude if is_claude else bench.openai
    bench.upstream.turns = [{"text": "Hi \ud83d.", "usage": None}]
    assert bench.ask("none", **kind())["final_response"] == "Hi ?."
    bench.upstream.turns = ["<html>"]
    answer = bench.post("none", **kind())
    assert answer.status_code == 502
    assert answer.json()["error"]["message"].endswith("no usable answer")
    bench.upstream.turns = [{"calls": [("get_order", {"id": 7})]}, {"text": "Fine."}]
    assert bench.ask("get_order", **kind())["tool_calls"][0]["arguments"] == {"id": 7}


def test_the_environment_goes_nowhere(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.setenv(f"{name}_CUSTOM_HEADERS", "x-gateway-key: s3cret")
        monkeypatch.setenv(f"{name}_BASE_URL", bench.url)
    monkeypatch.setenv("OPENAI_ORG_ID", "s3cret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "s3cret")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "s3cret")
    for kind in (bench.openai, bench.claude):
        bench.upstream.turns = [{"text": "Hi."}]
        bench.ask("none", **kind(llm_headers={"x-own": "1"}))
    for headers in bench.upstream.headers:
        assert headers["x-own"] == "1"
        assert "s3cret" not in str(headers)


def test_a_key_follows_no_redirect(bench: Bench) -> None:
    answer = bench.post("get_order", **bench.claude(llm_base_url=f"{bench.url}/away"))
    assert answer.status_code == 502
    assert bench.upstream.seen == []


def test_stored_access_is_used_masked_and_goes_nowhere_else(bench: Bench) -> None:
    stored = {
        "provider": "openai",
        "api_key": "sk-stored-key-9876",
        "model": "m",
        "base_url": f"{bench.url}/v1",
        "extra_headers": {"x-team": "t"},
    }
    told = bench.http.post("/admin/llm-config/_default", json=stored).json()
    assert told["config"]["api_key"] == "...9876"
    assert "sk-stored" not in bench.http.get("/admin/llm-config").text
    bench.upstream.turns = [{"text": "Hi."}]
    assert bench.ask("none")["final_response"] == "Hi."
    assert bench.upstream.headers[0]["authorization"] == "Bearer sk-stored-key-9876"
    assert bench.upstream.headers[0]["x-team"] == "t"
    other = bench.post("none", llm_base_url=f"{bench.url}/v2")
    assert other.status_code == 400
    assert "only to the address it was stored with" in other.json()["error"]["message"]
    assert len(bench.upstream.seen) == 1
    bench.http.post("/admin/llm-config/shop", json={**stored, "api_key": "sk-of-the-shop-1234"})
    bench.upstream.turns = [{"text": "Hi."}]
    bench.ask("none", llm_model="other", llm_headers={"X-Team": "mine", "x-own": "1"})
    assert bench.upstream.headers[1]["x-team"] == "t"
    assert bench.upstream.headers[1]["x-own"] == "1"
    aside = bench.post("none", llm_headers={"hOST": "evil.example"})
    assert aside.status_code == 400
    assert "host can't be set" in aside.json()["error"]["message"]
    assert bench.upstream.headers[1]["authorization"] == "Bearer sk-of-the-shop-1234"
    assert bench.upstream.seen[1]["model"] == "other"
    assert bench.http.delete("/admin/llm-config/shop").json()["status"] == "removed"
    assert bench.http.delete("/admin/llm-config/shop").status_code == 404


def test_the_local_model_answers_where_nothing_is_configured(bench: Bench) -> None:
    told = bench.ask("none")
    assert told["confidence_level"] == "no_tool"
    assert told["final_response"]
    assert told["usage"]["output_tokens"] > 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tool_executor": "shell"}, "tool_executor: Input should be"),
        ({"tool_executor": "callable"}, "no Python functions"),
        ({"tool_executor": "http://169.254.169.254/x"}, "does not call 169.254.169.254"),
        ({"tool_executor": "http://u:p@localhost/x"}, "user name"),
        ({"tool_executor": "ftp://localhost/x"}, "http or https"),
        ({"llm_base_url": "http://localhost/v1"}, "needs an llm_api_key"),
        ({"llm_api_key": "k", "llm_base_url": "https://evil.example/v1"}, "does not call evil"),
        ({"llm_api_key": "k", "llm_base_url": "http://api.openai.com/v1"}, "does not call api"),
        ({"llm_provider": "openai"}, "llm_api_key: Field required"),
        ({"llm_provider": "bard"}, "llm_provider: Input should be one of"),
        ({"query": ""}, "query: String should have"),
        ({"llm_api_key": ""}, "llm_api_key: Field required"),
        ({"llm_api_key": "clé"}, "llm_api_key: Input should be printable ASCII"),
        ({"llm_api_key": "k", "llm_headers": {"x": "clé"}}, "llm_headers: not a header"),
        ({"llm_api_key": "k", "llm_headers": {"x y": "1"}}, "llm_headers: not a header"),
        ({"llm_api_key": "k", "llm_headers": {"Host": "evil"}}, "llm_headers: host can't be set"),
        ({"llm_api_key": "k", "llm_headers": {"TE": "x"}}, "llm_headers: te can't be set"),
        ({"llm_api_key": "k", "llm_base_url": "http://localhost/v1\n"}, "llm_base_url: not a URL"),
        ({"tool_executor": "http://localhost:5/x\n"}, "tool_executor: not a URL"),
        ({"enable_thinking": 1}, "enable_thinking: Input should be a valid boolean"),
    ],
)
def test_bad_requests_are_told(bench: Bench, more: dict[str, Any], message: str) -> None:
    answer = bench.http.post("/query", json={"domain_id": "shop", "query": "x", **more})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert bench.upstream.seen == []


def test_an_unknown_domain_is_not_found(bench: Bench) -> None:
    answer = bench.http.post("/query", json={"domain_id": "nowhere", "query": "x"})
    assert answer.status_code == 404


def get_order(id: int) -> dict[str, Any]:
    return {"id": id, "state": "sent"}


async def cancel_order(id: int) -> str:
    raise KeyError(id)


FUNCTIONS = {"get_order": get_order, "cancel_order": cancel_order}


def test_python_functions_are_run_as_tools() -> None:
    """Given by whoever embeds the server, or named by a setting."""
    upstream = Upstream()
    given = Settings(model="dummy")
    named = Settings(model="dummy", tool_functions=f"{__name__}:FUNCTIONS")
    with serving(upstream.app) as base:
        for settings, functions in ((given, FUNCTIONS), (named, None)):
            with live(settings, functions) as running, httpx.Client(base_url=running.url) as http:
                http.post("/domains/shop/tools", json={"tools": TOOLS}).raise_for_status()
                bench = Bench(http, upstream, base)
                upstream.turns = [
                    {"calls": [("get_order", '{"id": 7}')]},
                    {"calls": [("cancel_order", '{"id": 7}')]},
                    {"text": "It is sent."},
                ]
                told = bench.ask("get_order", tool_executor="callable", **bench.openai())
                first, second = (call["result"] for call in told["tool_calls"])
                assert first == {"id": 7, "state": "sent"}
                assert second == {"error": "the tool failed: KeyError"}


@pytest.mark.parametrize("spec", ["nowhere:F", "json:nothing", "json", "json:loads", ":", "a b:c"])
def test_functions_that_can_not_be_loaded_are_told(spec: str) -> None:
    with pytest.raises(ConfigError, match="tool_functions"):
        build(Settings(model="dummy", tool_functions=spec))


def test_the_servers_own_settings_answer_where_nothing_is_stored() -> None:
    upstream = Upstream()
    with serving(upstream.app) as base:
        settings = Settings(
            model="dummy",
            llm_provider="openai",
            llm_api_key="sk-of-the-server-1",
            llm_base_url=f"{base}/v1",
            llm_model="theirs",
        )
        with live(settings) as running, httpx.Client(base_url=running.url) as http:
            http.post("/domains/shop/tools", json={"tools": TOOLS}).raise_for_status()
            upstream.turns = [{"text": "Hi."}]
            assert Bench(http, upstream, base).ask("none")["final_response"] == "Hi."
    assert upstream.headers[0]["authorization"] == "Bearer sk-of-the-server-1"
    assert upstream.seen[0]["model"] == "theirs"

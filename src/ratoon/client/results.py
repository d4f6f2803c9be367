"""What the router's server answers, as the client tells it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

LAST_EVENT = "answer"
_COMMENT = ":"  # begins a line of an event stream that only tells that the server is alive


class ClientError(Exception):
    """The server refused or can't be reached. ``status`` 0: there was no answer."""

    def __init__(self, message: str, status: int = 0, kind: str = "", request_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class Domain:
    """What the server says of registered tools. ``raw`` holds all of it."""

    domain_id: str
    status: str
    num_tools: int
    prefix_tokens: int
    progress: float
    prefill_ms: float
    query_count: int
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A tool and how likely it is; ``name`` None: that there is no tool for it."""

    name: str | None
    probability: float


@dataclass(frozen=True, slots=True)
class RouteResult:
    """Which tool serves a query. ``error`` is only there in a batch."""

    tool_name: str | None
    confidence: float
    candidates: tuple[Candidate, ...]
    arguments: Mapping[str, Any] | None
    tool_schema: Mapping[str, Any] | None
    cached_tokens: int
    timings: Mapping[str, float]
    error: str | None = None
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of a pipeline. ``error``: why it was not run."""

    tool_name: str
    arguments: Mapping[str, Any] | None
    result: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """A query's answer."""

    final_response: str
    tool_calls: tuple[ToolCall, ...]
    confidence: float
    confidence_level: str
    thinking: str
    timings: Mapping[str, float]
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a streamed pipeline: ``route``, ``call``, ``result`` or ``answer``."""

    name: str
    data: Mapping[str, Any]


def domain_of(told: Mapping[str, Any]) -> Domain:
    """Registered tools."""
    return Domain(
        told["domain_id"],
        told["status"],
        told["num_tools"],
        told["prefix_tokens"],
        told["progress"],
        told["prefill_ms"],
        told["query_count"],
        told,
    )


def route_of(told: Mapping[str, Any]) -> RouteResult:
    """A choice, or why there is none."""
    if "error" in told:
        return RouteResult(None, 0.0, (), None, None, 0, {}, told["error"]["message"], told)
    return RouteResult(
        told["tool_name"],
        told["confidence"],
        tuple(Candidate(each["name"], each["probability"]) for each in told["top_candidates"]),
        told.get("arguments"),
        told.get("tool_schema"),
        told["cached_tokens"],
        told["timings"],
        raw=told,
    )


def domains_of(told: Mapping[str, Any]) -> list[Domain]:
    """All of a list."""
    return [domain_of(each) for each in told["domains"]]


def routes_of(told: Mapping[str, Any]) -> list[RouteResult]:
    """All of a batch."""
    return [route_of(each) for each in told["results"]]


def pipeline_of(told: Mapping[str, Any]) -> PipelineResult:
    """A query's answer."""
    calls = tuple(
        ToolCall(each["tool_name"], each["arguments"], each["result"], each.get("error"))
        for each in told["tool_calls"]
    )
    return PipelineResult(
        told["final_response"],
        calls,
        told["confidence"],
        told["confidence_level"],
        told.get("thinking", ""),
        told["timings"],
        told,
    )


def read(answer: httpx.Response) -> dict[str, Any]:
    """The answer's JSON. Raises ClientError for an error."""
    try:
        told = answer.json()
    except (ValueError, RecursionError):
        told = None
    if answer.is_success and isinstance(told, dict):
        return told
    status = answer.status_code
    raise _error(
        told, f"the server answered {status}", status, answer.headers.get("request-id", "")
    )


def unreachable(error: httpx.HTTPError) -> ClientError:
    """What a request that got no answer is told as."""
    if isinstance(error, httpx.TimeoutException):
        return ClientError("the server did not answer in time")
    return ClientError(f"the server can't be reached: {type(error).__name__}")


class Records:
    """The events of a stream, put together from pieces of its text."""

    def __init__(self) -> None:
        self._rest = ""
        self._lines: list[str] = []
        self._is_complete = False

    def feed(self, piece: str) -> Iterator[Event]:
        """The events that this piece ends. Raises ClientError for one that tells an error."""
        # only \n ends a line here: a text may hold what else breaks lines elsewhere
        *lines, self._rest = (self._rest + piece).split("\n")
        for line in lines:
            yield from self._take(line.removesuffix("\r"))

    def close(self) -> None:
        """The stream has ended. Raises ClientError where its last event is missing."""
        if not self._is_complete:
            raise ClientError("the answer broke off")

    def _take(self, line: str) -> Iterator[Event]:
        if line and not line.startswith(_COMMENT):
            self._lines.append(line)
        elif self._lines and not line:
            record, self._lines = self._lines, []
            event = _event(record)
            self._is_complete = event.name == LAST_EVENT
            yield event


def _event(lines: Sequence[str]) -> Event:
    """A record of the stream. Raises ClientError for one that tells an error."""
    try:
        name = lines[0].removeprefix("event: ")
        data = json.loads(lines[1].removeprefix("data: "))
    except (ValueError, LookupError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ClientError("the server sent what is no event")
    if name == "error":
        raise _error(data, "the answer broke off", 200, str(data.get("request_id", "")))
    return Event(name, data)


def _error(told: object, otherwise: str, status: int, request_id: str) -> ClientError:
    """What an error's JSON says, or else ``otherwise``."""
    error = told.get("error") if isinstance(told, dict) else None
    found = error if isinstance(error, dict) else {}
    message, kind = str(found.get("message") or otherwise), str(found.get("type", ""))
    return ClientError(message, status, kind, request_id)

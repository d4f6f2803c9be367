"""Bytes of a request to a checked wire type; what is wrong is told as Anthropic tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from ratoon import wire
from ratoon.errors import InvalidRequest, RequestTooLarge, ThreadUnsupported

B = TypeVar("B", bound=BaseModel)
W = TypeVar("W", bound=wire.CountTokensRequest)

# A body over the limit is read on, and thrown away, up to this many times the limit: most HTTP
# clients look for the answer only after they have sent everything.
_DRAIN_FACTOR = 4
# each is looked for after every token of the reply
MAX_STOP_SEQUENCES = 1000


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; ``RequestTooLarge`` above ``limit`` bytes."""
    n_read = 0
    chunks: list[bytes] = []
    async for chunk in request.stream():
        n_read += len(chunk)
        if n_read <= limit:
            chunks.append(chunk)
        elif n_read > limit * _DRAIN_FACTOR:
            break
    if n_read > limit:
        raise RequestTooLarge("Request exceeds the maximum size")
    return b"".join(chunks)


async def read_json(http: Request, kind: type[B]) -> B:
    """The body, read and validated; the work on what may be large is a worker thread's."""
    body = await read_body(http, http.app.state.service.settings.max_body_bytes)
    return await to_thread.run_sync(parse_json, kind, body)


def parse_json(kind: type[B], body: bytes) -> B:
    """Validate against any model; the first error is raised as ``InvalidRequest``."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(_explain(error)) from None


def parse_body(kind: type[W], body: bytes) -> W:
    """Validate; the first error is raised as ``InvalidRequest``."""
    request = parse_json(kind, body)
    for is_wrong, message in _RULES:
        if is_wrong(request):
            raise InvalidRequest(message)
    if isinstance(request, wire.MessagesRequest):
        for breaks, message in _MESSAGES_RULES:
            if breaks(request):
                raise InvalidRequest(message)
        if request.thread is not None and request.thread.type == "continue":
            raise ThreadUnsupported
    return request


# how pydantic names the branches of a union, besides ``str`` and ``bool``
_BRANCHES = ("list[", "literal[")


def _is_outside(value: float | None) -> bool:
    return value is not None and not 0 <= value <= 1


def _repeats_names(request: wire.CountTokensRequest) -> bool:
    names = [tool.name for tool in request.tools or ()]
    return len(set(names)) < len(names)


def _asks_to_compact(request: wire.CountTokensRequest) -> bool:
    edits = request.context_management.edits if request.context_management else ()
    return any(isinstance(edit, wire.Compact) for edit in edits)


def _prefills_output(request: wire.MessagesRequest) -> bool:
    """Whether the reply would have to be JSON only together with text that the client wrote."""
    config = request.output_config.format if request.output_config else None
    last = request.messages[-1]
    if (config or request.output_format) is None or last.role != "assistant":
        return False
    content = last.content
    return isinstance(content, str) or any(isinstance(b, wire.TextBlock) for b in content[-1:])


def _budget(request: wire.CountTokensRequest) -> int | None:
    """Tokens of reasoning that are asked for, where that is asked at all."""
    thinking = request.thinking
    return thinking.budget_tokens if thinking and thinking.type == "enabled" else None


def _lacks_budget(request: wire.CountTokensRequest) -> bool:
    thinking = request.thinking
    return bool(thinking and thinking.type == "enabled" and thinking.budget_tokens is None)


def _budget_is_too_large(request: wire.MessagesRequest) -> bool:
    """With ``max_tokens`` 0 there is no reply, and the prompt is that of a later request."""
    return request.max_tokens > 0 and (_budget(request) or 0) >= request.max_tokens


_RULES: tuple[tuple[Callable[[wire.CountTokensRequest], bool], str], ...] = (
    (lambda r: not r.messages, "messages: at least one message is required"),
    (_repeats_names, "tools: Tool names must be unique."),
    (_lacks_budget, "thinking.enabled.budget_tokens: Field required"),
    (
        lambda r: (budget := _budget(r)) is not None and budget < 1024,
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        lambda r: bool(r.mcp_servers),
        "mcp_servers: this server connects to no MCP servers; declare their tools in `tools`",
    ),
    (
        _asks_to_compact,
        "context_management.edits: compact_20260112 is not supported by this server",
    ),
)

_MESSAGES_RULES: tuple[tuple[Callable[[wire.MessagesRequest], bool], str], ...] = (
    (lambda r: r.max_tokens < 0, "max_tokens: Input should be greater than or equal to 0"),
    (lambda r: _is_outside(r.temperature), "temperature: range: 0..1"),
    (lambda r: _is_outside(r.top_p), "top_p: range: 0..1"),
    (lambda r: (r.top_k or 0) < 0, "top_k: Input should be greater than or equal to 0"),
    (
        lambda r: len(r.stop_sequences or ()) > MAX_STOP_SEQUENCES,
        f"stop_sequences: at most {MAX_STOP_SEQUENCES} are supported",
    ),
    (
        lambda r: any(not s.strip() for s in r.stop_sequences or ()),
        "stop_sequences: each stop sequence must contain non-whitespace",
    ),
    (
        _budget_is_too_large,
        "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our "
        "documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
        "#max-tokens-and-context-windows",
    ),
    (
        _prefills_output,
        "messages: a final assistant text can't be continued where `output_config.format` asks "
        "for JSON",
    ),
    (lambda r: r.container is not None, "container: containers are not supported by this server"),
    (lambda r: r.compaction is not None, "compaction: not supported by this server"),
)


def _explain(error: ValidationError) -> str:
    first = _most_specific(error.errors(include_url=False, include_context=False))
    if first["type"] == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return f"The request body is not valid JSON: {reason}"
    path = ".".join(str(step) for step in first["loc"] if not _is_branch(step))
    return f"{path}: {first['msg']}" if path else first["msg"]


def _most_specific(errors: list[ErrorDetails]) -> ErrorDetails:
    """The first error; where it is one branch of a union, the branch that got furthest."""
    loc = errors[0]["loc"]
    branch = next((i for i, step in enumerate(loc) if _is_branch(step)), None)
    if branch is None:
        return errors[0]
    siblings = [e for e in errors if e["loc"][:branch] == loc[:branch]]
    return max(siblings, key=lambda e: len(e["loc"]))


def _is_branch(step: int | str) -> bool:
    """Whether a step of an error's path names a branch of a union, not a field."""
    return isinstance(step, str) and (step in ("str", "bool") or step.startswith(_BRANCHES))

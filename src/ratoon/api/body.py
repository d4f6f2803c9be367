"""Bytes of a request to a checked wire type; what is wrong is told as Anthropic tells it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import Request

from ratoon import wire
from ratoon.errors import InvalidRequest, RequestTooLarge

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


def parse_body(kind: type[W], body: bytes) -> W:
    """Validate; the first error is raised as ``InvalidRequest``."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(_explain(error)) from None
    for is_wrong, message in _RULES:
        if is_wrong(request):
            raise InvalidRequest(message)
    if isinstance(request, wire.MessagesRequest):
        for breaks, message in _MESSAGES_RULES:
            if breaks(request):
                raise InvalidRequest(message)
    return request


def _is_outside(value: float | None) -> bool:
    return value is not None and not 0 <= value <= 1


_RULES: tuple[tuple[Callable[[wire.CountTokensRequest], bool], str], ...] = (
    (lambda r: not r.messages, "messages: at least one message is required"),
)

_MESSAGES_RULES: tuple[tuple[Callable[[wire.MessagesRequest], bool], str], ...] = (
    (lambda r: r.max_tokens < 1, "max_tokens: Input should be greater than or equal to 1"),
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
    """Whether a step of an error's path names a branch of ``str | list[...]``, not a field."""
    return isinstance(step, str) and (step == "str" or step.startswith("list["))

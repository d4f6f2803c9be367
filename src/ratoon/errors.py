"""Every error Ratoon raises on purpose.

RatoonError
├── ConfigError            a setting is wrong; the process does not start
├── ModelError             a model file can't be loaded or used
├── InvalidRequest         400  invalid_request_error
│   ├── PromptTooLong      400  invalid_request_error, Anthropic's own wording
│   ├── ToolReferenceUnresolved   400  with the code tool_reference_unresolved
│   └── ThreadUnsupported         400  with the code thread_unsupported_request
├── AuthenticationFailed   401  authentication_error
├── PermissionDenied       403  permission_error
├── NotFound               404  not_found_error
├── RequestTooLarge        413  request_too_large
├── RateLimited            429  rate_limit_error
├── Overloaded             529  overloaded_error
├── UpstreamError          502  api_error
├── TookTooLong            504  timeout_error
└── InternalError          500  api_error

Each class carries the HTTP status and the Anthropic error type, so the edge maps them in one place.
"""

from __future__ import annotations


class RatoonError(Exception):
    """Base class: the message is safe to show to a client."""

    status = 500
    kind = "api_error"
    code: str | None = None  # names the cause among errors of one kind


class ConfigError(RatoonError):
    """A setting is wrong."""


class ModelError(RatoonError):
    """A model file can't be loaded or used."""


class InternalError(RatoonError):
    """Something failed inside; the request is lost, the server goes on."""


class InvalidRequest(RatoonError):
    """The client's request can't be served as it is."""

    status = 400
    kind = "invalid_request_error"


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context window."""

    def __init__(self, n_tokens: int, maximum: int) -> None:
        super().__init__(f"prompt is too long: {n_tokens} tokens > {maximum} maximum")


class ToolReferenceUnresolved(InvalidRequest):
    """A reference names a tool that the request does not define."""

    code = "tool_reference_unresolved"

    def __init__(self, name: str) -> None:
        super().__init__(f"Tool reference '{name}' not found in available tools")


class ThreadUnsupported(InvalidRequest):
    """The request leaves its history to a thread, and there is none."""

    code = "thread_unsupported_request"

    def __init__(self) -> None:
        super().__init__(
            "thread: this server holds no threads; send the full conversation without `thread`"
        )


class AuthenticationFailed(RatoonError):
    """The API key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class PermissionDenied(RatoonError):
    """The key is right but may not do this."""

    status = 403
    kind = "permission_error"


class NotFound(RatoonError):
    """No such route, model or object."""

    status = 404
    kind = "not_found_error"


class RequestTooLarge(RatoonError):
    """The body is over the size limit."""

    status = 413
    kind = "request_too_large"


class RateLimited(RatoonError):
    """Too many requests from one key."""

    status = 429
    kind = "rate_limit_error"


class UpstreamError(RatoonError):
    """Another server that the request needs gave no usable answer."""

    status = 502


class TookTooLong(RatoonError):
    """The request was not done within its time."""

    status = 504
    kind = "timeout_error"


class Overloaded(RatoonError):
    """The queue is full; try again later."""

    status = 529
    kind = "overloaded_error"

"""How a prompt's tokens are booked: read from the cache, written to it, or plain input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ratoon import wire


def usage_of(
    n_prompt: int, n_cached: int, boundaries: Sequence[int], has_marks: bool
) -> wire.Usage:
    """The three input figures; their sum is exactly ``n_prompt``.

    With cache marks in the request, what is computed up to the last boundary counts as written.
    """
    last = max((b for b in boundaries if b <= n_prompt), default=0) if has_marks else 0
    n_created = max(0, last - n_cached)
    return wire.Usage(
        input_tokens=n_prompt - n_cached - n_created,
        cache_creation_input_tokens=n_created,
        cache_read_input_tokens=n_cached,
        cache_creation=wire.CacheCreation(ephemeral_5m_input_tokens=n_created),
        output_tokens=0,
    )


def total_usage(rounds: Sequence[wire.Usage], n_searches: int) -> wire.Usage:
    """The usage of a reply in several rounds: sums, and each round for itself."""
    n_created = sum(each.cache_creation_input_tokens for each in rounds)
    return wire.Usage(
        input_tokens=sum(each.input_tokens for each in rounds),
        cache_creation_input_tokens=n_created,
        cache_read_input_tokens=sum(each.cache_read_input_tokens for each in rounds),
        cache_creation=wire.CacheCreation(ephemeral_5m_input_tokens=n_created),
        output_tokens=sum(each.output_tokens for each in rounds),
        server_tool_use=wire.ServerToolUsage(tool_search_requests=n_searches),
        iterations=[wire.IterationUsage.model_validate(each.model_dump()) for each in rounds],
    )


def has_cache_marks(request: wire.CountTokensRequest) -> bool:
    """Whether any part of the request carries ``cache_control``."""
    return any(getattr(part, "cache_control", None) is not None for part in _parts(request))


def _parts(request: wire.CountTokensRequest) -> Iterator[Any]:
    yield request
    yield from request.tools or ()
    yield from _blocks(request.system)
    for message in request.messages:
        for block in _blocks(message.content):
            yield block
            if isinstance(block, wire.ToolResultBlock):
                yield from _blocks(block.content)


def _blocks(content: str | Sequence[Any] | None) -> Sequence[Any]:
    return () if content is None or isinstance(content, str) else content

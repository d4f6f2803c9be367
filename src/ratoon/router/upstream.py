"""Asking a language model through its provider's SDK, and what is told where that fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from ratoon.errors import UpstreamError
from ratoon.router.llm import Reply

_UNUSABLE = "the language model's server gave no usable answer"


async def reply_through(
    sdk: ModuleType,
    failure: type[Exception],
    asking: Awaitable[Any],
    read: Callable[[Any], Reply],
) -> Reply:
    """``failure`` is the base of what ``sdk`` raises. Raises UpstreamError."""
    try:
        answer = await asking
    except failure as error:
        raise UpstreamError(_explain(sdk, error)) from None
    try:
        return read(answer)
    except (AttributeError, LookupError, TypeError, ValueError):  # the SDKs take anything
        raise UpstreamError(_UNUSABLE) from None


def _explain(sdk: ModuleType, error: Any) -> str:
    """What went wrong, without anything that a key or an address may be in."""
    if isinstance(error, sdk.APIStatusError):
        return f"the language model's server answered {error.status_code}"
    if isinstance(error, sdk.APITimeoutError):
        return "the language model's server did not answer in time"
    if isinstance(error, sdk.APIConnectionError):
        return "the language model's server can't be reached"
    return _UNUSABLE

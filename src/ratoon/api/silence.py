"""A stream on which nothing is said for a while is taken for a dead one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


async def with_silence(
    items: AsyncGenerator[T], longest_s: float, first_s: float
) -> AsyncGenerator[T | None]:
    """The items as they come, and None whenever none came for ``longest_s`` seconds, or for
    ``first_s`` at first. Whoever made ``items`` closes it, after this."""

    async def take() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    pending = asyncio.ensure_future(take())
    wait_s = first_s
    try:
        while True:
            await asyncio.wait((pending,), timeout=wait_s)
            wait_s = longest_s
            if not pending.done():
                yield None
                continue
            found = pending.result()
            if found is None:
                return
            pending = asyncio.ensure_future(take())
            yield found[0]
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)

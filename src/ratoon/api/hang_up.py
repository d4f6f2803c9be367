"""Work for a client that may leave before it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def while_connected(http: Request, work: Awaitable[T]) -> T:
    """Do it; if the client leaves meanwhile, cancel it and raise ClientDisconnect. The request's
    body must have been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(http))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass

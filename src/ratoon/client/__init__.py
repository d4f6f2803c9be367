"""The Python client of the router, for threads and for coroutines.

    with RatoonClient() as client:
        client.register_tools("shop", tools)
        print(client.route("shop", "Where is order 7?").tool_name)

It needs nothing of the rest of the package.
"""

from ratoon.client.blocking import RatoonClient
from ratoon.client.calls import DEFAULT_URL
from ratoon.client.results import (
    Candidate,
    ClientError,
    Domain,
    Event,
    PipelineResult,
    RouteResult,
    ToolCall,
)
from ratoon.client.waiting import AsyncRatoonClient

__all__ = [
    "AsyncRatoonClient",
    "Candidate",
    "ClientError",
    "DEFAULT_URL",
    "Domain",
    "Event",
    "PipelineResult",
    "RatoonClient",
    "RouteResult",
    "ToolCall",
]

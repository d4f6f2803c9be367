"""A web service of your own in front of Ratoon: it routes, and runs the tools itself.

    ratoon serve
    python examples/fastapi_integration.py
    curl http://127.0.0.1:8000/ask -H 'content-type: application/json' \\
        -d '{"query": "Where is order ORD-1234?"}'
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from ratoon.client import DEFAULT_URL, AsyncRatoonClient, ClientError

TOOLS = Path(__file__).with_name("retail_tools.json")
DOMAIN = "retail"
SURE = 0.5

STOCK = {"iphone 16 pro": 45}


def check_inventory(product: str) -> dict[str, Any]:
    return {"product": product, "in_stock": STOCK.get(product.lower(), 0)}


def get_order_status(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id, "status": "on its way"}


RUN: Mapping[str, Callable[..., dict[str, Any]]] = {
    "check_inventory": check_inventory,
    "get_order_status": get_order_status,
}


class Question(BaseModel):
    query: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Register once; the server keeps the tools' state for all queries."""
    url = os.environ.get("RATOON_URL", DEFAULT_URL)
    async with AsyncRatoonClient(url, os.environ.get("RATOON_API_KEY")) as client:
        await client.register_tools(DOMAIN, json.loads(TOOLS.read_text(encoding="utf-8")))
        app.state.client = client
        yield


app = FastAPI(title="Shop", lifespan=lifespan)


@app.post("/ask")
async def ask(question: Question) -> dict[str, Any]:
    """The chosen tool's result, or what else was likely."""
    client: AsyncRatoonClient = app.state.client
    try:
        found = await client.route(DOMAIN, question.query)
    except ClientError as error:
        raise HTTPException(error.status or 502, str(error)) from None
    run = RUN.get(found.tool_name or "")
    if run is None or found.confidence < SURE or found.arguments is None:
        likely = [each.name for each in found.candidates if each.name is not None]
        return {"tool": None, "likely": likely, "confidence": found.confidence}
    return {
        "tool": found.tool_name,
        "arguments": found.arguments,
        "confidence": found.confidence,
        "result": run(**found.arguments),
    }


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))

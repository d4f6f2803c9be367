"""``GET /v1/models``: the one model, under its own name and under one Claude Code will list."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.service import Engine
from ratoon.errors import InvalidRequest, NotFound

ALIAS_PREFIX = "claude-local-"
_LISTED_WORDS = ("claude", "anthropic")  # Claude Code drops ids that contain neither
_MAX_LIMIT = 1000


def model_ids(name: str) -> list[str]:
    if any(word in name.lower() for word in _LISTED_WORDS):
        return [name]
    return [name, ALIAS_PREFIX + name]


async def list_models(request: Request) -> Response:
    engine = request.app.state.service.engine
    ids, has_more = _page(model_ids(engine.model_name), request)
    return JSONResponse(
        {
            "data": [_describe(model_id, engine) for model_id in ids],
            "has_more": has_more,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
        }
    )


async def get_model(request: Request) -> Response:
    engine = request.app.state.service.engine
    model_id = request.path_params["model_id"]
    if model_id not in model_ids(engine.model_name):
        raise NotFound(f"model: {model_id}")
    return JSONResponse(_describe(model_id, engine))


def _describe(model_id: str, engine: Engine) -> dict[str, Any]:
    return {
        "type": "model",
        "id": model_id,
        "display_name": engine.model_name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": engine.n_ctx,
        "max_tokens": engine.n_ctx,
        "capabilities": None,
    }


def _page(ids: list[str], request: Request) -> tuple[list[str], bool]:
    """The asked page, and whether there is more beyond it."""
    query = request.query_params
    limit = _limit(query.get("limit", "20"))
    after, before = query.get("after_id"), query.get("before_id")
    if before in ids:
        ids = ids[: ids.index(before)]
        return ids[-limit:], len(ids) > limit
    if after in ids:
        ids = ids[ids.index(after) + 1 :]
    return ids[:limit], len(ids) > limit


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidRequest("limit: Input should be a valid integer")
    limit = int(text[:5])
    if not 1 <= limit <= _MAX_LIMIT:
        raise InvalidRequest(f"limit: range: 1..{_MAX_LIMIT}")
    return limit

"""``/admin/llm-config``: the language models that answer a domain's queries."""

from __future__ import annotations

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ratoon.api.body import read_json
from ratoon.api.domains import tenant_of
from ratoon.api.query import Headers, desk_of
from ratoon.router.catalogue import check_id
from ratoon.router.credentials import Access, provider_of


class LlmConfig(BaseModel):
    provider: str
    api_key: str = Field("", repr=False)
    model: str | None = None
    base_url: str | None = None
    extra_headers: Headers | None = Field(None, repr=False)
    system_prompt: str | None = None


async def set_llm(http: Request) -> Response:
    desk, domain_id = desk_of(http), check_id(http.path_params["domain_id"])
    asked = await read_json(http, LlmConfig)
    access = desk.check(
        Access(
            provider_of(asked.provider, "provider"),
            asked.api_key,
            asked.model or "",
            asked.base_url,
            dict(asked.extra_headers or {}),
            asked.system_prompt or "",
        )
    )
    desk.credentials.set(tenant_of(http), domain_id, access)
    return JSONResponse(_named(domain_id, "configured") | {"config": access.masked()})


async def list_llms(http: Request) -> Response:
    stored = desk_of(http).credentials.of(tenant_of(http))
    return JSONResponse({"configs": {name: access.masked() for name, access in stored.items()}})


async def remove_llm(http: Request) -> Response:
    domain_id = check_id(http.path_params["domain_id"])
    desk_of(http).credentials.remove(tenant_of(http), domain_id)
    return JSONResponse(_named(domain_id, "removed"))


def _named(domain_id: str, status: str) -> dict[str, object]:
    """``tool_id`` is what clients of an older service look for."""
    return {"status": status, "domain_id": domain_id, "tool_id": domain_id}

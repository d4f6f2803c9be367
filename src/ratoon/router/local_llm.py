"""The model that this server runs, as a language model among others."""

from __future__ import annotations

from http import HTTPStatus

import httpx
from starlette.types import ASGIApp

from ratoon.errors import UpstreamError
from ratoon.router.anthropic_form import body_of, reply_of
from ratoon.router.llm import Prompt, Reply


class LocalLlm:
    """The model that this server runs, asked through the server's own application."""

    def __init__(self, app: ASGIApp, api_key: str, timeout_s: float = 120.0) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://localhost",
            headers={"x-api-key": api_key},
            timeout=timeout_s,
        )

    async def reply(self, prompt: Prompt) -> Reply:
        """Raises UpstreamError."""
        body = body_of(prompt, "local")
        if prompt.temperature is not None:  # which Anthropic's own API no longer takes
            body["temperature"] = min(1.0, prompt.temperature)
        answer = await self._client.post("/v1/messages", json=body)
        if answer.status_code != HTTPStatus.OK:
            # the message is this server's own, so it may be shown
            raise UpstreamError(f"the local model: {answer.json()['error']['message']}")
        return reply_of(answer.json())

    async def close(self) -> None:
        await self._client.aclose()

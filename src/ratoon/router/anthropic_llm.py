"""Models behind the Anthropic Messages API."""

from __future__ import annotations

import re

import anthropic
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from ratoon.router.anthropic_form import body_of, reply_of
from ratoon.router.credentials import Access
from ratoon.router.llm import Prompt, Reply
from ratoon.router.names import ANTHROPIC_CHARACTERS, sendable_names
from ratoon.router.upstream import reply_through

DEFAULT_MODEL = "claude-sonnet-5"
_URL = "https://api.anthropic.com"
_END = re.compile(r"/v1(/messages)?$")  # a client may give the whole address


class AnthropicLlm:
    """One caller's access to a server. The client does not follow redirects: a key goes to the
    address it was given for and nowhere else."""

    def __init__(self, access: Access, timeout_s: float) -> None:
        self._model = access.model or DEFAULT_MODEL
        self._client = AsyncAnthropic(
            api_key=access.api_key,
            base_url=_END.sub("", (access.base_url or _URL).rstrip("/")),
            default_headers=dict(access.headers),
            timeout=timeout_s,
            http_client=DefaultAsyncHttpxClient(follow_redirects=False, timeout=timeout_s),
        )
        # the environment's are the operator's own, and not for every address
        self._client._custom_headers = dict(access.headers)

    async def reply(self, prompt: Prompt) -> Reply:
        """Raises UpstreamError."""
        names = sendable_names(prompt.tools, ANTHROPIC_CHARACTERS)
        own = {sent: name for name, sent in names.items()}
        asking = self._client.messages.create(**body_of(prompt, self._model, names))
        return await reply_through(
            anthropic,
            anthropic.AnthropicError,
            asking,
            lambda message: reply_of(message.model_dump(), own),
        )

    async def close(self) -> None:
        await self._client.close()

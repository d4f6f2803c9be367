"""Models behind the Anthropic Messages API."""

from __future__ import annotations

import re

import anthropic
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

from ratoon.errors import UpstreamError
from ratoon.router.anthropic_form import body_of, reply_of
from ratoon.router.credentials import Access
from ratoon.router.llm import Prompt, Reply
from ratoon.router.names import sendable_names

DEFAULT_MODEL = "claude-sonnet-5"
_UNUSABLE = "the language model's server gave no usable answer"
_MAX_NAME = 128
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
        names = sendable_names(prompt.tools, _MAX_NAME)
        try:
            message = await self._client.messages.create(**body_of(prompt, self._model, names))
        except anthropic.AnthropicError as error:
            raise UpstreamError(_explain(error)) from None
        try:
            return reply_of(message.model_dump(), {sent: name for name, sent in names.items()})
        except (AttributeError, LookupError, TypeError, ValueError):  # the SDK takes anything
            raise UpstreamError(_UNUSABLE) from None

    async def close(self) -> None:
        await self._client.close()


def _explain(error: anthropic.AnthropicError) -> str:
    """What went wrong, without anything that a key or an address may be in."""
    if isinstance(error, anthropic.APIStatusError):
        return f"the language model's server answered {error.status_code}"
    if isinstance(error, anthropic.APITimeoutError):
        return "the language model's server did not answer in time"
    if isinstance(error, anthropic.APIConnectionError):
        return "the language model's server can't be reached"
    return _UNUSABLE

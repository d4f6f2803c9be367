"""Models behind the Anthropic Messages API; the one this server runs is among them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import anthropic
import httpx
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from starlette.types import ASGIApp

from ratoon.errors import UpstreamError
from ratoon.router.catalogue import Tool
from ratoon.router.llm import Asked, Call, Called, Prompt, Reply, Results, Turn

DEFAULT_MODEL = "claude-sonnet-5"
THINKING_TOKENS = 1024  # the least there is
_END = re.compile(r"/v1(/messages)?$")  # a client may give the whole address


class AnthropicLlm:
    """One caller's access to a server. The client does not follow redirects: a key goes to the
    address it was given for and nowhere else."""

    def __init__(
        self,
        api_key: str,
        model: str = "",
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self._model = model or DEFAULT_MODEL
        self._client = AsyncAnthropic(
            api_key=api_key,
            base_url=_END.sub("", base_url.rstrip("/")) if base_url else None,
            default_headers=dict(headers or {}),
            timeout=timeout_s,
            http_client=DefaultAsyncHttpxClient(follow_redirects=False, timeout=timeout_s),
        )

    async def reply(self, prompt: Prompt) -> Reply:
        """Raises UpstreamError."""
        try:
            message = await self._client.messages.create(**_body(prompt, self._model))
        except anthropic.AnthropicError as error:
            raise UpstreamError(_explain(error)) from None
        return _reply(message)

    async def close(self) -> None:
        await self._client.close()


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
        body = _body(prompt, "local")
        if prompt.temperature is not None:  # which Anthropic's own API no longer takes
            body["temperature"] = min(1.0, prompt.temperature)
        answer = await self._client.post("/v1/messages", json=body)
        if answer.status_code != HTTPStatus.OK:
            # the message is this server's own, so it may be shown
            raise UpstreamError(f"the local model: {answer.json()['error']['message']}")
        return _reply(anthropic.types.Message.model_validate(answer.json()))

    async def close(self) -> None:
        await self._client.aclose()


def _body(prompt: Prompt, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [message_of(turn) for turn in prompt.turns],
        "max_tokens": prompt.max_tokens,
    }
    if prompt.system:
        body["system"] = prompt.system
    if prompt.tools:
        body["tools"] = [_tool(tool) for tool in prompt.tools]
        body["tool_choice"] = _choice(prompt)
    if prompt.thinks and prompt.forced is None:  # a forced call leaves no room for reasoning
        body["thinking"] = {"type": "enabled", "budget_tokens": THINKING_TOKENS}
        body["max_tokens"] = prompt.max_tokens + THINKING_TOKENS
    return body


def _tool(tool: Tool) -> dict[str, Any]:
    schema = {"type": "object", **tool.parameters}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def _choice(prompt: Prompt) -> dict[str, Any]:
    if prompt.bars_calls:
        return {"type": "none"}
    if prompt.forced is None:
        return {"type": "auto"}
    return {"type": "tool", "name": prompt.forced}


def message_of(turn: Turn) -> dict[str, Any]:
    """A turn in the API's form."""
    match turn:
        case Asked():
            return {"role": "user", "content": turn.text}
        case Called():
            said: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
            calls = [_call(call) for call in turn.calls]
            return {"role": "assistant", "content": said + calls}
        case Results():
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": each.call.id,
                    "content": each.text,
                    "is_error": each.is_error,
                }
                for each in turn.results
            ]
            return {"role": "user", "content": results}


def _call(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments or {}}


def _reply(message: anthropic.types.Message) -> Reply:
    text, thinking = [], []
    calls = []
    for block in message.content:
        if block.type == "text":
            text.append(block.text)
        elif block.type == "thinking":
            thinking.append(block.thinking)
        elif block.type == "tool_use":
            value = dict(block.input) if isinstance(block.input, Mapping) else None
            calls.append(Call(block.id, block.name, value, json.dumps(block.input)))
    usage = {
        "input_tokens": message.usage.input_tokens,
        "output_tokens": message.usage.output_tokens,
    }
    return Reply("".join(text), tuple(calls), "\n".join(thinking), message.model, usage)


def _explain(error: anthropic.AnthropicError) -> str:
    """What went wrong, without anything that a key or an address may be in."""
    if isinstance(error, anthropic.APIStatusError):
        return f"the language model's server answered {error.status_code}"
    if isinstance(error, anthropic.APITimeoutError):
        return "the language model's server did not answer in time"
    if isinstance(error, anthropic.APIConnectionError):
        return "the language model's server can't be reached"
    return "the language model's server gave no usable answer"

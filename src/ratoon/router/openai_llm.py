"""Models behind the OpenAI Chat Completions API, whoever serves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from ratoon.errors import UpstreamError
from ratoon.router.catalogue import Tool
from ratoon.router.credentials import Access
from ratoon.router.llm import Call, Prompt, Reply
from ratoon.router.names import OPENAI_CHARACTERS, sendable_names
from ratoon.router.openai_form import messages_of
from ratoon.router.strict import whole
from ratoon.router.upstream import reply_through

DEFAULT_MODEL = "gpt-4o"
_URL = "https://api.openai.com/v1"
_OPENAI = "api.openai.com"
_END = "/chat/completions"  # a client may give the whole address


class OpenAiLlm:
    """One caller's access to a server. The client does not follow redirects: a key goes to the
    address it was given for and nowhere else."""

    def __init__(self, access: Access, timeout_s: float) -> None:
        self._model = access.model or DEFAULT_MODEL
        self._client = AsyncOpenAI(
            api_key=access.api_key,
            base_url=(access.base_url or _URL).rstrip("/").removesuffix(_END),
            default_headers=dict(access.headers),
            timeout=timeout_s,
            http_client=DefaultAsyncHttpxClient(follow_redirects=False, timeout=timeout_s),
        )
        # the environment's are the operator's own, and not for every address
        self._client._custom_headers = dict(access.headers)
        self._client.organization = self._client.project = None
        # OpenAI's newer models refuse the old name, which is all that other servers know
        is_openai = self._client.base_url.host == _OPENAI
        self._limit = "max_completion_tokens" if is_openai else "max_tokens"

    async def reply(self, prompt: Prompt) -> Reply:
        """Raises UpstreamError."""
        names = sendable_names(prompt.tools, OPENAI_CHARACTERS)
        own = {sent: name for name, sent in names.items()}
        asking = self._client.chat.completions.create(**self._body(prompt, names))
        return await reply_through(
            openai, openai.OpenAIError, asking, lambda answer: _reply(answer, own)
        )

    async def close(self) -> None:
        await self._client.close()

    def _body(self, prompt: Prompt, names: Mapping[str, str]) -> dict[str, Any]:
        messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
        for turn in prompt.turns:
            messages += messages_of(turn, names)
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            self._limit: prompt.max_tokens,
        }
        if prompt.temperature is not None:
            body["temperature"] = prompt.temperature
        if prompt.tools:
            body["tools"] = [_tool(tool, names[tool.name]) for tool in prompt.tools]
            body["tool_choice"] = _choice(prompt, names)
        if prompt.forced is not None:
            body["parallel_tool_calls"] = False
        if prompt.thinks:
            body["extra_body"] = {"enable_thinking": True}
        return body


def _choice(prompt: Prompt, names: Mapping[str, str]) -> Any:
    if prompt.bars_calls:
        return "none"
    if prompt.forced is None:
        return "auto"
    return {"type": "function", "function": {"name": names[prompt.forced]}}


def _tool(tool: Tool, name: str) -> dict[str, Any]:
    function = {
        "name": name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }
    return {"type": "function", "function": function}


def _reply(answer: Any, names: Mapping[str, str]) -> Reply:
    if not answer.choices:
        raise UpstreamError("the language model gave no answer")
    message = answer.choices[0].message
    calls = [call for call in message.tool_calls or () if call.type == "function"]
    usage = answer.usage
    return Reply(
        whole(message.content or ""),
        tuple(_call(call, names) for call in calls),
        # no field of the official API; several servers send it
        thinking=whole(getattr(message, "reasoning_content", None) or ""),
        model=answer.model or "",
        usage={"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        if usage
        else {},
    )


def _call(call: Any, names: Mapping[str, str]) -> Call:
    name, given = call.function.name, call.function.arguments
    # some servers send an object
    text = given if isinstance(given, str) else json.dumps(given)
    return Call.parse(call.id, names.get(name, name), text)

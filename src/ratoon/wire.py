"""The Anthropic Messages wire types, named as Anthropic names them.

A leaf: chat, api and client share it. Unknown fields are ignored, as the API grows by optional
fields; wrong types are errors, also where pydantic would convert (``"5"`` is no integer).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, StrictBool, StrictFloat, StrictInt

T = TypeVar("T")


class StopAtFirst(FailFast):
    """Refuse a list at its first wrong item: telling a million of them takes minutes."""

    def __hash__(self) -> int:  # members of a union must be hashable
        return hash(type(self))


Items = Annotated[list[T], StopAtFirst()]


class Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class CacheControl(Wire):
    type: Literal["ephemeral"] = "ephemeral"
    ttl: str | None = None


class TextBlock(Wire):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


class ThinkingBlock(Wire):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Wire):
    type: Literal["redacted_thinking"]
    data: str = ""


class ToolUseBlock(Wire):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class ToolReferenceBlock(Wire):
    type: Literal["tool_reference"]
    tool_name: str


class ImageBlock(Wire):
    type: Literal["image"]
    cache_control: CacheControl | None = None


class DocumentBlock(Wire):
    type: Literal["document"]
    source: dict[str, Any]
    title: str | None = None
    cache_control: CacheControl | None = None


ResultBlock = Annotated[
    TextBlock | ImageBlock | DocumentBlock | ToolReferenceBlock, Field(discriminator="type")
]


class ToolResultBlock(Wire):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[ResultBlock] | None = None
    is_error: StrictBool | None = None
    cache_control: CacheControl | None = None


ContentBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock,
    Field(discriminator="type"),
]


class Message(Wire):
    role: Literal["user", "assistant", "system"]
    content: str | Items[ContentBlock]


class Tool(Wire):
    """A client tool. Typed server tools (``type`` other than ``custom``) carry no schema."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: StrictBool = False
    cache_control: CacheControl | None = None


class ToolChoice(Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool = False


class Thinking(Wire):
    """Whether the model may reason first, and how much of that it may show."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: StrictInt | None = None
    display: str | None = None  # "omitted" hides the text; every other value shows it


class OutputFormat(Wire):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Wire):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(Wire):
    """What decides a prompt: the shared part of messages and count_tokens.

    A top-level ``cache_control`` marks the end of the prompt.
    """

    model: str
    messages: Items[Message]
    system: str | Items[TextBlock] | None = None
    tools: Items[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(CountTokensRequest):
    max_tokens: StrictInt
    stream: StrictBool = False
    stop_sequences: Items[str] | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    metadata: dict[str, Any] | None = None


class Usage(Wire):
    """Prompt tokens = input + cache_creation + cache_read."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int

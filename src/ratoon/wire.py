"""The Anthropic Messages wire types, named as Anthropic names them.

A leaf: chat, api and client share it. Unknown fields are ignored, as the API grows by optional
fields; wrong types are errors, also where pydantic would convert (``"5"`` is no integer).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    model_validator,
)

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
    """Here the model learns of a tool that was left out of the prompt's head."""

    type: Literal["tool_reference"]
    tool_name: str


class ImageBlock(Wire):
    type: Literal["image"]
    cache_control: CacheControl | None = None


class TextSource(Wire):
    type: Literal["text"]
    data: str


class ContentSource(Wire):
    type: Literal["content"]
    content: str | Items[Annotated[TextBlock | ImageBlock, Field(discriminator="type")]]


class OtherSource(Wire):
    """A source that is no text: a PDF, or something that lies elsewhere."""

    type: Literal["base64", "url", "file"]


class DocumentBlock(Wire):
    type: Literal["document"]
    source: Annotated[TextSource | ContentSource | OtherSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None
    cache_control: CacheControl | None = None


class SearchResultBlock(Wire):
    type: Literal["search_result"]
    source: str
    title: str
    content: Items[TextBlock]
    cache_control: CacheControl | None = None


ResultBlock = Annotated[
    TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock,
    Field(discriminator="type"),
]


class ToolResultBlock(Wire):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Items[ResultBlock] | None = None
    is_error: StrictBool | None = None
    cache_control: CacheControl | None = None


class ServerToolUseBlock(Wire):
    """A call that the server answered itself."""

    type: Literal["server_tool_use", "mcp_tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


class FoundTools(Wire):
    type: Literal["tool_search_tool_search_result"]
    tool_references: Items[ToolReferenceBlock]


class SearchError(Wire):
    type: Literal["tool_search_tool_result_error"]
    error_code: str
    error_message: str | None = None


class ToolSearchResultBlock(Wire):
    type: Literal["tool_search_tool_result"]
    tool_use_id: str
    content: Annotated[FoundTools | SearchError, Field(discriminator="type")]
    cache_control: CacheControl | None = None


class ServerResultBlock(Wire):
    """The answer of a server tool that some other server ran."""

    type: Literal[
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "advisor_tool_result",
        "mcp_tool_result",
    ]
    tool_use_id: str
    content: Any = None
    cache_control: CacheControl | None = None


class CompactionBlock(Wire):
    """A summary that stands for what came before it."""

    type: Literal["compaction"]
    content: str | None = None
    cache_control: CacheControl | None = None


class MarkerBlock(Wire):
    """A note of some server to itself; no prompt text."""

    type: Literal["fallback", "mcp_tool_listing"]


class Tool(Wire):
    """A client tool, or a typed one (``type`` other than ``custom``), whose schema is known."""

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    defer_loading: StrictBool = False
    cache_control: CacheControl | None = None

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        """A toolset stands for tools of several names and has none of its own."""
        if isinstance(value, dict) and "name" not in value and "toolset" in str(value.get("type")):
            return {**value, "name": value["type"]}
        return value


class ToolNamed(Wire):
    type: Literal["tool_reference"]
    name: str


class ToolDefined(Wire):
    type: Literal["tool_definition"]
    definition: Tool


class ToolAdditionBlock(Wire):
    """From here on the tool may be called."""

    type: Literal["tool_addition"]
    tool: Annotated[ToolNamed | ToolDefined, Field(discriminator="type")]
    cache_control: CacheControl | None = None


class ToolRemovalBlock(Wire):
    """From here on the tool may not be called."""

    type: Literal["tool_removal"]
    tool: ToolNamed
    cache_control: CacheControl | None = None


ContentBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ServerToolUseBlock
    | ToolSearchResultBlock
    | ServerResultBlock
    | CompactionBlock
    | MarkerBlock
    | ToolAdditionBlock
    | ToolRemovalBlock,
    Field(discriminator="type"),
]


def _known_role(role: object) -> object:
    """Some clients have roles of their own (``ctx``, ``msg``); what they say is input."""
    is_known = not isinstance(role, str) or role in ("user", "assistant", "system")
    return role if is_known else "user"


Role = Annotated[Literal["user", "assistant", "system"], BeforeValidator(_known_role)]


class Message(Wire):
    role: Role
    content: str | Items[ContentBlock]
    clear_at: str | None = None  # "next_user_message": a system text for one turn only


class ToolChoice(Wire):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: StrictBool = False


class Thinking(Wire):
    """Whether the model may reason first, and how much of that it may show."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: StrictInt | None = None
    display: str | None = None  # "omitted" hides the text; every other value shows it


class OutputFormat(Wire):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Wire):
    effort: str | None = None
    format: OutputFormat | None = None


class InputTokens(Wire):
    type: Literal["input_tokens"]
    value: StrictInt = Field(ge=0)


class ToolUses(Wire):
    type: Literal["tool_uses"]
    value: StrictInt = Field(ge=0)


class ThinkingTurns(Wire):
    type: Literal["thinking_turns"]
    value: StrictInt = Field(gt=0)


class KeepAll(Wire):
    type: Literal["all"]


class ClearToolUses(Wire):
    """Take old tool results out of the prompt once it has grown."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, Field(discriminator="type")] = InputTokens(
        type="input_tokens", value=100_000
    )
    keep: ToolUses = ToolUses(type="tool_uses", value=3)
    clear_at_least: InputTokens | None = None
    exclude_tools: Items[str] | None = None
    clear_tool_inputs: StrictBool | Items[str] | None = None


class ClearThinking(Wire):
    """Take the reasoning of old turns out of the prompt."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | Annotated[ThinkingTurns | KeepAll, Field(discriminator="type")] = (
        ThinkingTurns(type="thinking_turns", value=1)
    )


class Compact(Wire):
    type: Literal["compact_20260112"]


Edit = Annotated[ClearToolUses | ClearThinking | Compact, Field(discriminator="type")]


class ContextManagement(Wire):
    edits: Items[Edit] = Field(default_factory=list)


class Diagnostics(Wire):
    previous_message_id: str | None = None


class Thread(Wire):
    type: Literal["create", "continue"]


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
    context_management: ContextManagement | None = None
    mcp_servers: Items[Any] | None = None


class MessagesRequest(CountTokensRequest):
    """``max_tokens`` 0 computes the prompt and keeps it, with no reply."""

    max_tokens: StrictInt
    stream: StrictBool = False
    stop_sequences: Items[str] | None = None
    temperature: StrictFloat | None = None
    top_p: StrictFloat | None = None
    top_k: StrictInt | None = None
    metadata: dict[str, Any] | None = None
    diagnostics: Diagnostics | None = None
    thread: Thread | None = None
    container: Any = None
    compaction: Any = None


class CacheCreation(Wire):
    """Nothing here expires by time, so what is kept is told under the default lifetime."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class ServerToolUsage(Wire):
    web_search_requests: int = 0
    web_fetch_requests: int = 0
    tool_search_requests: int = 0


class IterationUsage(Wire):
    """One round of a reply in which the server ran tools."""

    type: Literal["message"] = "message"
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation
    output_tokens: int


class Usage(Wire):
    """Prompt tokens = input + cache_creation + cache_read; of all rounds, if there are several."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    cache_creation: CacheCreation = CacheCreation()
    output_tokens: int
    service_tier: Literal["standard"] = "standard"
    server_tool_use: ServerToolUsage | None = None
    iterations: list[IterationUsage] | None = None

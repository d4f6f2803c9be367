"""What a conversation may hold: every block that no text can stand for is refused by its place."""

from __future__ import annotations

from collections.abc import Iterator

from ratoon import wire
from ratoon.chat.typed import complete
from ratoon.errors import InvalidRequest

_CALLS = wire.ToolUseBlock | wire.ServerToolUseBlock
_BOTH = wire.TextBlock | wire.DocumentBlock | wire.SearchResultBlock
_BOTH |= wire.CompactionBlock | wire.MarkerBlock
_ALLOWED = {
    "system": wire.TextBlock | wire.ToolAdditionBlock | wire.ToolRemovalBlock,
    "user": _BOTH | wire.ImageBlock | wire.ToolResultBlock,
    "assistant": _BOTH
    | wire.ThinkingBlock
    | wire.RedactedThinkingBlock
    | _CALLS
    | wire.ToolSearchResultBlock
    | wire.ServerResultBlock,
}


def check_blocks(request: wire.CountTokensRequest) -> None:
    """Raises InvalidRequest for the first block that can't stand where it stands.

    A tool result may come long after its call, or before other results, for clients reorder what
    they send; only one whose call is nowhere in the conversation tells of something that never
    happened. No client that works elsewhere sends that: the API itself is stricter.
    """
    called = {block.id for _, _, block in _blocks(request) if isinstance(block, _CALLS)}
    for place, role, block in _blocks(request):
        if not isinstance(block, _ALLOWED[role]):
            raise InvalidRequest(
                f"{place}: {block.type} blocks are not allowed in messages of role {role!r}"
            )
        match block:
            case wire.ToolResultBlock() if block.tool_use_id not in called:
                raise InvalidRequest(
                    f"{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block.tool_use_id}. Each `tool_result` block must have a corresponding "
                    "`tool_use` block in the previous message."
                )
            case wire.ToolAdditionBlock(tool=wire.ToolDefined(definition=tool)):
                complete(tool, f"{place}.tool.definition")
            case wire.ImageBlock():
                raise InvalidRequest(f"{place}: image blocks are not supported by this model")
            case wire.DocumentBlock(source=wire.OtherSource()):
                raise InvalidRequest(
                    f"{place}.source: documents of type {block.source.type!r} are not supported "
                    "by this model; send their text"
                )


def _blocks(request: wire.CountTokensRequest) -> Iterator[tuple[str, str, wire.ContentBlock]]:
    for i, message in enumerate(request.messages):
        if not isinstance(message.content, str):
            for j, block in enumerate(message.content):
                yield f"messages.{i}.content.{j}", message.role, block

"""Context edits: what a client lets the server leave out of a long conversation.

Pure. Every edit that takes effect changes the prompt's prefix, so an edit must not creep along with
the conversation: old tool results are cleared in steps. Which ones is found by following the
conversation from its beginning, as if each of its prompts had been sent: whenever one is over the
trigger, all results but those to keep are cleared at once, and stay so. Equal conversations give
equal edits, and a longer one repeats those of its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ratoon import wire
from ratoon.chat.normalise import Conversation, Turn
from ratoon.chat.plain import document_text, search_result_text

CLEARED = "[This result was cleared to save context.]"

Count = Callable[[str], int]  # text → its tokens
Applied = dict[str, Any]  # in the API's own words


def apply_edits(
    conversation: Conversation, edits: list[wire.Edit], n_head: int, count: Count
) -> tuple[Conversation, list[Applied]]:
    """The conversation after the edits, and what each that took effect did. ``n_head``: tokens
    in front of the messages. Markup around texts is not counted."""
    applied: list[Applied] = []
    for edit in edits:
        match edit:
            case wire.ClearThinking():
                turns, done = _clear_thinking(conversation.turns, edit, count)
            case wire.ClearToolUses():
                turns, done = _clear_tool_uses(conversation.turns, edit, n_head, count)
            case wire.Compact():
                continue  # refused where the request is checked
        if done is not None:
            applied.append(done)
            conversation = replace(conversation, turns=turns)
    return conversation, applied


def _clear_thinking(
    turns: tuple[Turn, ...], edit: wire.ClearThinking, count: Count
) -> tuple[tuple[Turn, ...], Applied | None]:
    keep = edit.keep
    if not isinstance(keep, wire.ThinkingTurns):
        return turns, None
    thinking = [i for i, turn in enumerate(turns) if any(map(_is_thinking, turn.blocks))]
    old = set(thinking[: -keep.value])
    if not old:
        return turns, None
    n_tokens = sum(
        count(block.thinking)
        for i in old
        for block in turns[i].blocks
        if isinstance(block, wire.ThinkingBlock)
    )
    kept = (
        replace(turn, blocks=_without_thinking(turn), hides_thinking=True) if i in old else turn
        for i, turn in enumerate(turns)
    )
    done = {
        "type": edit.type,
        "cleared_thinking_turns": len(old),
        "cleared_input_tokens": n_tokens,
    }
    return tuple(turn for turn in kept if turn.blocks), done


def _clear_tool_uses(
    turns: tuple[Turn, ...], edit: wire.ClearToolUses, n_head: int, count: Count
) -> tuple[tuple[Turn, ...], Applied | None]:
    walk = _Walk(edit, n_head, count)
    for i, turn in enumerate(turns):
        walk.add(turn)
        is_prompt = turn.role != "assistant"
        if is_prompt and (i + 1 == len(turns) or turns[i + 1].role == "assistant"):
            walk.clear_if_due()
    if not walk.cleared:
        return turns, None
    done = {
        "type": edit.type,
        "cleared_tool_uses": len(walk.cleared),
        "cleared_input_tokens": sum(walk.cleared.values()),
    }
    blocks = (tuple(map(walk.edited, turn.blocks)) for turn in turns)
    return tuple(replace(t, blocks=b) for t, b in zip(turns, blocks, strict=True)), done


@dataclass(frozen=True, slots=True)
class _Use:
    """One tool use that may be cleared: what that spares, in tokens."""

    id: str
    n_spared: int


class _Walk:
    """Follows a conversation and decides, prompt by prompt, which tool uses are cleared."""

    def __init__(self, edit: wire.ClearToolUses, n_head: int, count: Count) -> None:
        self.cleared: dict[str, int] = {}  # id → tokens spared
        self._edit = edit
        self._count = count
        self._n_tokens = n_head
        self._due = edit.trigger.value
        self._calls: dict[str, wire.ToolUseBlock] = {}
        self._uses: list[_Use] = []  # answered and not cleared, oldest first
        self._n_cleared = count(CLEARED)

    def add(self, turn: Turn) -> None:
        for block in turn.blocks:
            self._n_tokens += _n_tokens(block, self._count)
            if isinstance(block, wire.ToolUseBlock):
                self._calls[block.id] = block
            elif isinstance(block, wire.ToolResultBlock):
                self._uses.append(_Use(block.tool_use_id, self._n_spared(block)))

    def clear_if_due(self) -> None:
        edit = self._edit
        if self._size <= self._due:
            return
        n_old = max(0, len(self._uses) - edit.keep.value)
        old = [use for use in self._uses[:n_old] if use.n_spared > 0]
        n_spared = sum(use.n_spared for use in old)
        if not old or (edit.clear_at_least and n_spared < edit.clear_at_least.value):
            return
        self.cleared.update((use.id, use.n_spared) for use in old)
        self._uses = [use for use in self._uses if use.id not in self.cleared]
        self._n_tokens -= n_spared
        # Where clearing can't get below the trigger, it waits until it is worth while again.
        step = max(1, edit.trigger.value // 8)
        self._due = max(edit.trigger.value, self._size + step)

    @property
    def _size(self) -> int:
        is_counted = isinstance(self._edit.trigger, wire.ToolUses)
        return len(self._uses) if is_counted else self._n_tokens

    def edited(self, block: wire.ContentBlock) -> wire.ContentBlock:
        """The block as the prompt shows it."""
        if isinstance(block, wire.ToolResultBlock) and block.tool_use_id in self.cleared:
            return block.model_copy(update={"content": CLEARED, "is_error": None})
        if not isinstance(block, wire.ToolUseBlock) or block.id not in self.cleared:
            return block
        return block.model_copy(update={"input": {}}) if self._clears_input(block.name) else block

    def _n_spared(self, block: wire.ToolResultBlock) -> int:
        """0: it stays. A result that loads tools does: the model could not call them any more."""
        call = self._calls.get(block.tool_use_id)
        if call is None or call.name in (self._edit.exclude_tools or ()) or _loads_tools(block):
            return 0
        n_spared = _n_tokens(block, self._count) - self._n_cleared
        if self._clears_input(call.name):
            n_spared += _n_tokens(call, self._count)
        return n_spared

    def _clears_input(self, name: str) -> bool:
        choice = self._edit.clear_tool_inputs
        return name in choice if isinstance(choice, list) else bool(choice)


def _is_thinking(block: wire.ContentBlock) -> bool:
    return isinstance(block, wire.ThinkingBlock | wire.RedactedThinkingBlock)


def _without_thinking(turn: Turn) -> tuple[wire.ContentBlock, ...]:
    return tuple(block for block in turn.blocks if not _is_thinking(block))


def _loads_tools(block: wire.ToolResultBlock) -> bool:
    parts = block.content
    return isinstance(parts, list) and any(isinstance(p, wire.ToolReferenceBlock) for p in parts)


def _n_tokens(block: wire.ContentBlock | wire.ToolReferenceBlock, count: Count) -> int:
    """Tokens of the texts in a block."""
    match block:
        case wire.TextBlock(text=text):
            return count(text)
        case wire.ToolUseBlock() | wire.ServerToolUseBlock():
            return count(block.name) + count(json.dumps(block.input, ensure_ascii=False))
        case wire.ToolResultBlock(content=str(text)):
            return count(text)
        case wire.ToolResultBlock(content=list(parts)):
            return sum(_n_tokens(part, count) for part in parts)
        case wire.DocumentBlock():
            return count(document_text(block))
        case wire.SearchResultBlock():
            return count(search_result_text(block))
    return 0

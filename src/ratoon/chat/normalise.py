"""The rules that keep prompt prefixes whole: what is volatile or mere form leaves the request.

Pure: a request goes in, a plainer conversation comes out, with a count of every rule that fired.
The content of a billing header is never logged, counted or kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ratoon import wire

BILLING_PREFIX = "x-anthropic-billing-header:"
TOTAL_TOKENS = "<total_tokens>Infinite tokens left</total_tokens>"

_BILLING_PAIR = re.compile(r"[ \t]*[A-Za-z0-9_.-]+=[^;\s]*")
_TOTAL_TOKENS = re.compile(r"<total_tokens>(?:[0-9]+|Infinite) tokens left</total_tokens>")
_REMINDER_START = "<system-reminder>"
_REMINDER_END = "</system-reminder>"

Role = Literal["user", "assistant", "system"]


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules are on."""

    drop_billing: bool = True
    fix_total_tokens: bool = True
    hoist_system: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: always a list of blocks, never an empty one. ``index`` is the client's.
    ``hides_thinking``: its reasoning was cleared and may not be put back."""

    role: Role
    blocks: tuple[wire.ContentBlock, ...]
    index: int
    hides_thinking: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request in its plainest form. The first ``n_head`` turns are system turns that
    precede the conversation proper."""

    system: tuple[wire.TextBlock, ...]
    turns: tuple[Turn, ...]
    n_head: int
    has_late_run: bool
    fired: Mapping[str, int]


def normalise(
    request: wire.CountTokensRequest, rules: Rules, *, hoist: bool = True
) -> Conversation:
    """Apply the rules. ``hoist`` lets one conversation keep its late run in place."""
    fired: Counter[str] = Counter()
    system = _system_blocks(request.system, rules, fired)
    turns = _turns(request.messages, rules, fired)
    n_head = _run_length(turns, 0)
    late = _late_run(turns, n_head)
    if rules.hoist_system and hoist and late:
        fired["hoist"] += len(late)
        head, first = turns[:n_head], turns[n_head]
        turns = [*head, *late, first, *turns[n_head + 1 + len(late) :]]
        n_head += len(late)
    return Conversation(system, tuple(turns), n_head, bool(late), +fired)


def drop_billing(text: str) -> str | None:
    """The text without its billing header, or None where it has no well-formed one."""
    if not text.startswith(BILLING_PREFIX):
        return None
    at, n_pairs = len(BILLING_PREFIX), 0
    while pair := _BILLING_PAIR.match(text, at):
        if not text.startswith(";", pair.end()):
            return None
        at, n_pairs = pair.end() + 1, n_pairs + 1
    if not n_pairs:
        return None
    return text[at:].lstrip(" \t").removeprefix("\n")


def fix_total_tokens(text: str) -> str:
    """The text with every count of tokens left replaced by one constant."""
    return _TOTAL_TOKENS.sub(TOTAL_TOKENS, text)


def fix_reminders(text: str) -> str:
    """As ``fix_total_tokens``, inside closed ``<system-reminder>`` elements only."""
    pieces, at = [], 0
    while (start := text.find(_REMINDER_START, at)) >= 0:
        end = text.find(_REMINDER_END, start)
        if end < 0:
            break
        pieces += [text[at:start], fix_total_tokens(text[start:end])]
        at = end
    return "".join([*pieces, text[at:]])


def _system_blocks(
    system: str | list[wire.TextBlock] | None, rules: Rules, fired: Counter[str]
) -> tuple[wire.TextBlock, ...]:
    given = [_text_block(system)] if isinstance(system, str) else list(system or ())
    blocks = [block for block in given if block.text]
    fired["empty_text"] += len(given) - len(blocks)
    if rules.drop_billing:
        blocks = _without_billing(blocks, fired)
    if rules.fix_total_tokens:
        blocks = [_rewritten(block, fix_total_tokens(block.text), fired) for block in blocks]
    return tuple(blocks)


def _without_billing(blocks: list[wire.TextBlock], fired: Counter[str]) -> list[wire.TextBlock]:
    """Headers are taken off the front only, one after another, so the rule is idempotent."""
    while blocks and (rest := drop_billing(blocks[0].text)) is not None:
        fired["billing"] += 1
        blocks = [blocks[0].model_copy(update={"text": rest})] * bool(rest) + blocks[1:]
    return blocks


def _turns(messages: Sequence[wire.Message], rules: Rules, fired: Counter[str]) -> list[Turn]:
    turns = []
    last_user = max((i for i, each in enumerate(messages) if each.role == "user"), default=-1)
    for index, message in enumerate(messages):
        content = message.content
        given: Sequence[wire.ContentBlock]
        given = [_text_block(content)] if isinstance(content, str) else content
        if message.clear_at == "next_user_message" and index < last_user:
            given = [block for block in given if not isinstance(block, wire.TextBlock)]
        blocks: list[wire.ContentBlock]
        blocks = [block for block in given if not _is_empty_text(block)]
        fired["empty_text"] += len(given) - len(blocks)
        if rules.fix_total_tokens and message.role in _TOTALS:
            fix = _TOTALS[message.role]
            blocks = [
                _rewritten(block, fix(block.text), fired)
                if isinstance(block, wire.TextBlock)
                else block
                for block in blocks
            ]
        if blocks:
            turns.append(Turn(message.role, tuple(blocks), index))
    return turns


_TOTALS = {"system": fix_total_tokens, "user": fix_reminders}


def _late_run(turns: list[Turn], n_head: int) -> list[Turn]:
    """The system turns directly behind the first user turn."""
    if n_head >= len(turns) or turns[n_head].role != "user":
        return []
    start = n_head + 1
    return turns[start : start + _run_length(turns, start)]


def _run_length(turns: list[Turn], start: int) -> int:
    end = start
    while end < len(turns) and turns[end].role == "system":
        end += 1
    return end - start


def _rewritten(block: wire.TextBlock, text: str, fired: Counter[str]) -> wire.TextBlock:
    if text == block.text:
        return block
    fired["total_tokens"] += 1
    return block.model_copy(update={"text": text})


def _is_empty_text(block: wire.ContentBlock) -> bool:
    return isinstance(block, wire.TextBlock) and not block.text


def _text_block(text: str) -> wire.TextBlock:
    return wire.TextBlock(type="text", text=text)

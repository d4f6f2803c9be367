"""Which form each conversation is rendered in.

The run of system messages behind the first user message is hoisted before it, so that siblings
share it. A conversation keeps the form it started with: changing it would lose its whole prefix.
Pure, and used from the event loop only.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ratoon import wire

SESSION_HEADER = "x-claude-code-session-id"
AGENT_HEADER = "x-claude-code-agent-id"


@dataclass(frozen=True, slots=True)
class ConversationKey:
    """One conversation. A compaction replaces the first user message, and so starts another."""

    session_id: str
    agent_id: str
    first_message: bytes


@dataclass(slots=True)
class ConversationForms:
    """The form of the conversations seen last: ``True`` for hoisted, ``False`` for in place."""

    capacity: int = 4096
    _forms: OrderedDict[ConversationKey, bool] = field(default_factory=OrderedDict)

    def recall(self, key: ConversationKey) -> bool | None:
        """The conversation's form, ``None`` if it is new here."""
        if key in self._forms:
            self._forms.move_to_end(key)
        return self._forms.get(key)

    def settle(self, key: ConversationKey, is_hoisted: bool) -> bool:
        """Fix the form of a new conversation; a known one keeps its own. Returns what holds."""
        form = self._forms.setdefault(key, is_hoisted)
        self._forms.move_to_end(key)
        if len(self._forms) > self.capacity:
            self._forms.popitem(last=False)
        return form

    def __len__(self) -> int:
        return len(self._forms)


def conversation_key(
    headers: Mapping[str, str], request: wire.CountTokensRequest
) -> ConversationKey | None:
    """``None`` if the client does not name its session."""
    session_id = headers.get(SESSION_HEADER)
    if not session_id:
        return None
    first = next((m for m in request.messages if m.role == "user"), None)
    return ConversationKey(session_id, headers.get(AGENT_HEADER, ""), _digest(first))


def has_reply(request: wire.CountTokensRequest) -> bool:
    """Whether the conversation has begun: the assistant has spoken in it."""
    return any(message.role == "assistant" for message in request.messages)


def _digest(message: wire.Message | None) -> bytes:
    """Equal for all spellings of one message: clients move marks and fold one block to a string."""
    hasher = hashlib.sha256()
    if message is None:
        return hasher.digest()
    content = message.content
    blocks = [wire.TextBlock(type="text", text=content)] if isinstance(content, str) else content
    for block in blocks:
        hasher.update(block.model_dump_json(exclude={"cache_control"}).encode())
        hasher.update(b"\0")
    return hasher.digest()

"""A prompt's parts as digests, to tell where two requests part. Nothing can be read back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ratoon.chat.normalise import Conversation
from ratoon.chat.plain import readable
from ratoon.chat.tools import to_json

_N_BYTES = 8  # a collision would cost no more than a wrong word in a report


@dataclass(frozen=True, slots=True)
class Outline:
    """Digests of what was rendered, after all rules. ``messages`` by the client's index."""

    system: bytes = b""
    tools: bytes = b""
    messages: tuple[tuple[int, bytes], ...] = ()


def outline(conversation: Conversation, definitions: Iterable[object]) -> Outline:
    """The outline of a conversation with these tools in its head."""
    turns = sorted(conversation.turns, key=lambda turn: turn.index)
    return Outline(
        system=digest("\0".join(block.text for block in conversation.system)),
        tools=digest("\0".join(to_json(item) for item in definitions)),
        messages=tuple(
            (
                turn.index,
                digest(to_json([readable(b.model_dump(exclude=_IDS)) for b in turn.blocks])),
            )
            for turn in turns
        ),
    )


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_N_BYTES).digest()


_IDS = {"id", "tool_use_id"}

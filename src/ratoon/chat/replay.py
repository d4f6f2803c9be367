"""Replies of the model put back into a prompt as the tokens that were sampled.

An echoed reply that means what was said is rendered as a splice mark. The header that the template
writes before it gives way to the one the reply was sampled after, so that the prompt's tokens are
those of the earlier prompt, then the sampled ones, then what is new.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ratoon import wire
from ratoon.chat.normalise import Turn
from ratoon.chat.tokens import Guard
from ratoon.chat.toolbox import Toolbox
from ratoon.errors import InvalidRequest
from ratoon.reuse.echo import means_same
from ratoon.reuse.replies import (
    EchoedBlock,
    EchoedCall,
    Origin,
    Outcome,
    Reply,
    ReplyMemory,
    Text,
    Thought,
)

# Characters in front of a header that tell where it begins. Where not all are found, fewer will
# do: what stands before a short turn may look otherwise when more has followed.
_TAILS = (24, 12, 6)
_MAX_HEADER = 512


@dataclass(frozen=True, slots=True)
class Splice:
    """A reply to put back. ``rest``: what the template writes behind the mark of its own."""

    reply: Reply
    rest: str = ""


class Context:
    """A running digest of what a prompt says, in whatever words the guard puts it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, value: object) -> None:
        text = json.dumps(value, ensure_ascii=False).replace(self._guard.sentinel, "")
        # JSON text holds no control character, so this one is told from all that a client says.
        text = text.replace(self._guard.late_mark, "\1")
        self._digest.update(text.encode() + b"\0")

    def add_tokens(self, tokens: array[int]) -> None:
        self._digest.update(b"tokens" + tokens.tobytes() + b"\0")

    @property
    def digest(self) -> bytes:
        return self._digest.digest()


class Replayer:
    """Finds the replies that one request echoes. ``outcomes`` counts what became of each echo."""

    def __init__(self, memory: ReplyMemory | None, toolbox: Toolbox) -> None:
        self.outcomes: Counter[str] = Counter()
        self.toolbox = toolbox
        self._memory = memory

    def find(self, turn: Turn, context: bytes, *, has_place: bool) -> Reply | None:
        """The reply that the turn echoes, if it was sampled in this context and still means the
        same. ``has_place``: the template can show it."""
        if self._memory is None:
            return None
        outcome, reply = self._search(self._memory, turn, context)
        if reply is not None and not has_place:
            outcome, reply = Outcome.REFUSED, None
        self.outcomes[outcome] += 1
        return reply

    def _search(
        self, memory: ReplyMemory, turn: Turn, context: bytes
    ) -> tuple[Outcome, Reply | None]:
        blocks = _echoed(turn.blocks)
        if blocks is None:
            return Outcome.DIFFERENT, None
        outcome, reply = memory.find(blocks, context)
        if reply is not None and not means_same(reply.blocks, blocks, self.toolbox.known_schemas):
            return Outcome.DIFFERENT, None
        if reply is not None and turn.hides_thinking and reply.has_reasoning:
            return Outcome.REFUSED, None
        return outcome, reply

    def refuse(self) -> None:
        """The template refused the whole conversation with its replies put back."""
        self.outcomes[Outcome.REFUSED] += self.outcomes.pop(Outcome.REPLAYED, 0)


def _echoed(blocks: Sequence[wire.ContentBlock]) -> list[EchoedBlock] | None:
    """The blocks of an assistant's message, or None where one was never sampled."""
    echoed: list[EchoedBlock] = []
    for block in blocks:
        match block:
            case wire.TextBlock():
                echoed.append(Text(block.text))
            case wire.ThinkingBlock():
                echoed.append(Thought(block.thinking, block.signature))
            case wire.ToolUseBlock() | wire.ServerToolUseBlock():
                echoed.append(EchoedCall(block.id, block.name, block.input))
            case _:
                return None
    return echoed


def origin_of(text: str, n_closed: int, context: bytes, guard: Guard) -> Origin | None:
    """Where the reply to this prompt will be sampled. The template's header for it begins at
    offset ``n_closed``; None where that can't be just a header."""
    header = text[n_closed:]
    since_reply = text[:n_closed].rpartition(guard.splice)[2]
    tail = since_reply.replace(guard.sentinel, "")[-_TAILS[0] :]
    is_ours = guard.sentinel not in header and guard.splice not in header
    is_header = is_ours and len(header) <= _MAX_HEADER
    return Origin(context, tail, header) if tail and is_header else None


def put_back(text: str, splices: Sequence[Splice], guard: Guard) -> str:
    """The rendered text with the header before each splice mark replaced by the one that its
    reply was sampled after. ``splices``: those whose marks the text must have, in order.

    Raises InvalidRequest where the template shows a mark otherwise than behind such a header.
    """
    first, *following = text.split(guard.splice)
    if len(following) != len(splices):
        raise InvalidRequest("the model's chat template does not show each reply once")
    pieces = [first]
    for splice, piece in zip(splices, following, strict=True):
        origin = splice.reply.origin
        pieces[-1] = _without_header(pieces[-1], origin.tail, guard) + origin.header
        if not piece.startswith(splice.rest):
            raise InvalidRequest("the model's chat template shows a call in an unknown form")
        pieces.append(piece.removeprefix(splice.rest))
    return guard.splice.join(pieces)


def _without_header(piece: str, tail: str, guard: Guard) -> str:
    """The piece up to where the template began to write the assistant's header."""
    end = piece[-_TAILS[0] - _MAX_HEADER :]
    clean = end.replace(guard.sentinel, "")
    for n in _TAILS:
        _, found, header = clean.rpartition(tail[-n:])
        if found and end.endswith(header):
            return piece[: len(piece) - len(header)]
    raise InvalidRequest("the model's chat template shows a reply in an unknown place")

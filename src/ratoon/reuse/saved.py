"""Replies as bytes, so that they outlive the process: exact, versioned, and checked when read."""

from __future__ import annotations

import base64
import json
import logging
import sys
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from ratoon.reuse.replies import Origin, Reply, ReplyKeeper, SentBlock, SentCall, Text, Thought

log = logging.getLogger("ratoon.reuse")

VERSION = 1


class BadReply(ValueError):
    """These bytes are not what ``dump_reply`` writes."""


def dump_reply(reply: Reply) -> bytes:
    """All of a reply as JSON. Halves of surrogate pairs are kept as they are, each by itself."""
    value = {
        "version": VERSION,
        "context": reply.origin.context.hex(),
        "tail": reply.origin.tail,
        "header": reply.origin.header,
        "tokens": _dump_tokens(reply.tokens),
        "blocks": [_dump_block(block) for block in reply.blocks],
        "path": reply.path.hex(),
    }
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def load_reply(data: bytes) -> Reply:
    """What ``dump_reply`` made these bytes of. Raises BadReply for any others."""
    try:
        reply = _load(json.loads(data.decode("utf-8", "surrogatepass")))
        is_exact = dump_reply(reply) == data
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise BadReply(f"it is no saved reply: {error}") from None
    if not is_exact:
        raise BadReply("it is not written as a saved reply is")
    return reply


def _dump_tokens(tokens: array[int]) -> str:
    """As base64 of little-endian numbers: a list of numbers takes ten times as long to read."""
    return base64.b64encode(_little(tokens).tobytes()).decode()


def _load_tokens(text: str) -> array[int]:
    tokens = array("i", base64.b64decode(text, validate=True))
    tokens = _little(tokens)
    if min(tokens, default=0) < 0:
        raise ValueError("a token is negative")
    return tokens


def _little(tokens: array[int]) -> array[int]:
    """From this machine's byte order to little-endian, and back."""
    if sys.byteorder == "big":
        tokens = array("i", tokens)
        tokens.byteswap()
    return tokens


def _dump_block(block: SentBlock) -> list[Any]:
    match block:
        case Text():
            return ["text", block.text]
        case Thought():
            return ["thought", block.text, block.signature]
        case SentCall():
            partial = None if block.partial is None else dict(block.partial)
            return ["call", block.id, block.name, block.raw, partial]


def _load(value: object) -> Reply:
    match value:
        case {
            "version": 1,
            "context": str(context),
            "tail": str(tail),
            "header": str(header),
            "tokens": str(numbers),
            "blocks": list(blocks),
            "path": str(path),
        }:
            origin = Origin(bytes.fromhex(context), tail, header)
            said = tuple(map(_load_block, blocks))
            return Reply(origin, _load_tokens(numbers), said, bytes.fromhex(path))
    raise ValueError(f"it has not the fields of version {VERSION}")


def _load_block(value: object) -> SentBlock:
    match value:
        case ["text", str(text)]:
            return Text(text)
        case ["thought", str(text), str(signature)]:
            return Thought(text, signature)
        case ["call", str(id), str(name), str(raw), dict() | None as partial]:
            return SentCall(id, name, raw, partial)
    raise ValueError("a block is of no known form")


class Records(Protocol):
    """Where bytes are kept by name. Nothing here waits but ``load``."""

    def put(self, name: str, data: bytes) -> None: ...

    def touch(self, name: str) -> None:
        """It was used; what was not goes first."""
        ...

    def remove(self, name: str) -> None: ...

    def load(self) -> Iterable[tuple[str, bytes]]:
        """All there is, least recently used first."""
        ...


class SavedReplies(ReplyKeeper):
    """Keeps a memory's replies in ``records``."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def keep(self, reply: Reply) -> None:
        self._records.put(_name(reply), dump_reply(reply))

    def use(self, reply: Reply) -> None:
        self._records.touch(_name(reply))

    def drop(self, reply: Reply) -> None:
        self._records.remove(_name(reply))

    def replies(self) -> Iterator[Reply]:
        """What was kept, least recently used first. What is no reply is removed."""
        n_bad, reason = 0, ""
        for name, data in self._records.load():
            try:
                reply = load_reply(data)
                if _name(reply) != name:
                    raise BadReply("it is not the reply its name tells")
            except BadReply as error:
                self._records.remove(name)
                n_bad, reason = n_bad + 1, str(error)
            else:
                yield reply
        if n_bad:
            log.warning("removed %d kept replies; of the last, %s", n_bad, reason)


def _name(reply: Reply) -> str:
    return b"".join(reply.place).hex()

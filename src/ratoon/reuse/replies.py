"""The replies that were sampled, kept for the requests that echo them.

A client sends earlier replies back in every request, in its own wording. The tokens that were
sampled are found again by the calls' ids, or by the text, together with a digest of everything
that stands in front: a reply is put back only where it was sampled.
"""

from __future__ import annotations

import enum
import hashlib
import sys
import threading
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str
    signature: str


@dataclass(frozen=True, slots=True)
class SentCall:
    """``raw``: its input as sent, JSON text or the beginning of one. ``partial``: what was told
    of a beginning to a client that asked for a whole message."""

    id: str
    name: str
    raw: str
    partial: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EchoedCall:
    id: str
    name: str
    input: Mapping[str, Any]


SentBlock = Text | Thought | SentCall
EchoedBlock = Text | Thought | EchoedCall
Place = tuple[bytes, bytes]  # a reply's name, and the digest of its context


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a reply was sampled.

    ``context``  digest of all that the prompt says
    ``tail``     the end of the prompt's text, without ``header``
    ``header``   the text that the template adds to make the model answer
    """

    context: bytes
    tail: str
    header: str


@dataclass(frozen=True, slots=True)
class Reply:
    """``tokens``: as sampled, without the one that ended the turn. ``path``: digest of the
    prompt's tokens and these."""

    origin: Origin
    tokens: array[int]
    blocks: tuple[SentBlock, ...]
    path: bytes

    @property
    def place(self) -> Place:
        """Where an echo finds it."""
        return name_of(self.blocks), self.origin.context

    @property
    def has_reasoning(self) -> bool:
        return any(isinstance(block, Thought) for block in self.blocks)

    @property
    def n_bytes(self) -> int:
        """About what it takes in memory."""
        return (
            _OVERHEAD_BYTES + self.tokens.itemsize * len(self.tokens) + sum(map(_size, self.blocks))
        )


class Outcome(enum.StrEnum):
    """What became of an assistant's message in a request."""

    REPLAYED = "replayed"
    DIFFERENT = "different"  # known, but what came back means something else
    ELSEWHERE = "elsewhere"  # known, but sampled after another prompt
    UNKNOWN = "unknown"
    REFUSED = "refused"  # known, but the template has no place for it


class ReplyKeeper:
    """Hears what becomes of a memory's replies, to keep them beyond it. This one keeps none.

    Called while the memory is locked, so in order; it only takes note, and does not raise.
    """

    def keep(self, reply: Reply) -> None:
        """It is remembered, in place of any other with its place."""

    def use(self, reply: Reply) -> None:
        """A request echoed it."""

    def drop(self, reply: Reply) -> None:
        """It is forgotten."""


class ReplyMemory:
    """Replies by what a client echoes of them; within a byte bound, least recently used first out.

    Every method may be called from any thread.
    """

    def __init__(self, max_bytes: int, keeper: ReplyKeeper | None = None) -> None:
        self.max_bytes = max_bytes
        self._keeper = keeper or ReplyKeeper()
        self._lock = threading.Lock()
        self._replies: OrderedDict[Place, Reply] = OrderedDict()
        self._n_places: Counter[bytes] = Counter()  # by name: in how many contexts it was said
        self._by_path: dict[bytes, set[Place]] = {}
        self._n_bytes = 0
        self._keeps_reasoning = True

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    def __len__(self) -> int:
        return len(self._replies)

    def keep_reasoning(self, keeps: bool) -> None:
        """Whether replies with reasoning are kept. Where none may reason any more, those there are
        go: reasoning in a history asks for more of it."""
        with self._lock:
            self._keeps_reasoning = keeps
            for place, reply in list(self._replies.items()):
                if not keeps and reply.has_reasoning:
                    self._drop(place)

    def remember(self, reply: Reply) -> None:
        """Keep a reply; it takes the place of an older one that no echo could tell from it."""
        with self._lock:
            self._drop(reply.place)
            if self._may_hold(reply):
                self._keeper.keep(reply)
                self._hold(reply)

    def restore(self, replies: Iterable[Reply]) -> None:
        """Take back what the keeper has kept, least recently used first. It is told only of those
        that have no place here any more."""
        with self._lock:
            for reply in replies:
                if not self._may_hold(reply):
                    self._keeper.drop(reply)
                elif reply.place not in self._replies:
                    self._hold(reply)

    def _may_hold(self, reply: Reply) -> bool:
        fits = reply.n_bytes <= self.max_bytes
        return fits and (self._keeps_reasoning or not reply.has_reasoning)

    def _hold(self, reply: Reply) -> None:
        place = reply.place
        self._replies[place] = reply
        self._n_places[place[0]] += 1
        self._by_path.setdefault(reply.path, set()).add(place)
        self._n_bytes += reply.n_bytes
        while self._n_bytes > self.max_bytes:
            self._drop(next(iter(self._replies)))

    def find(self, blocks: Sequence[EchoedBlock], context: bytes) -> tuple[Outcome, Reply | None]:
        """The reply that was sampled in this context and that the blocks may be an echo of."""
        name = name_of(blocks)
        with self._lock:
            reply = self._replies.get((name, context))
            if reply is not None:
                self._replies.move_to_end((name, context))
                self._keeper.use(reply)
                return Outcome.REPLAYED, reply
            is_known = self._n_places[name] > 0
        return Outcome.ELSEWHERE if is_known else Outcome.UNKNOWN, None

    def forget(self, paths: Iterable[bytes]) -> None:
        """No saved state goes that far any more, so nothing would be spared by these replies."""
        with self._lock:
            for path in paths:
                for place in list(self._by_path.get(path, ())):
                    self._drop(place)

    def _drop(self, place: Place) -> None:
        reply = self._replies.pop(place, None)
        if reply is None:
            return
        self._keeper.drop(reply)
        self._n_bytes -= reply.n_bytes
        name, _ = place
        self._n_places[name] -= 1
        if not self._n_places[name]:
            del self._n_places[name]
        places = self._by_path[reply.path]
        places.discard(place)
        if not places:
            del self._by_path[reply.path]


_OVERHEAD_BYTES = 1024  # objects and index entries


def name_of(blocks: Sequence[SentBlock | EchoedBlock]) -> bytes:
    """What survives every rewrite: the calls' ids; without any call, the text."""
    ids = [block.id for block in blocks if isinstance(block, SentCall | EchoedCall)]
    said = ids or [block.text for block in blocks if isinstance(block, Text) and block.text.strip()]
    digest = hashlib.blake2b(b"ids" if ids else b"text", digest_size=16)
    for part in said:
        digest.update(b"\0" + part.encode("utf-8", "surrogatepass"))
    return digest.digest()


def path_digest(tokens: Sequence[int]) -> bytes:
    """Equal for equal tokens."""
    return hashlib.blake2b(array("i", tokens).tobytes(), digest_size=16).digest()


def _size(block: SentBlock) -> int:
    match block:
        case Text():
            return sys.getsizeof(block.text)
        case Thought():
            return sys.getsizeof(block.text) + sys.getsizeof(block.signature)
        case SentCall():
            # a parsed value takes several times its text
            n_values = 4 if block.partial is not None else 0
            return (1 + n_values) * sys.getsizeof(block.raw)

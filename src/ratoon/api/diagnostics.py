"""Why a prompt could not reuse all of an earlier one: ``diagnostics.cache_miss_reason``.

Of every reply's prompt only digests are kept, enough to tell which part differs and, to within a
few tokens, where. Used from the event loop only, except for ``fingerprint``.
"""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ratoon.chat.outline import Outline
from ratoon.chat.render import Prompt

logger = logging.getLogger(__name__)

_CHUNK = 64  # tokens under one digest
_N_BYTES = 8


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One prompt: what was asked of which model, and digests of its tokens, chunk by chunk.
    ``tail`` is that of the last, incomplete chunk."""

    model: str
    outline: Outline
    n_tokens: int
    chunks: bytes
    tail: bytes


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt left an earlier one: after ``n_shared`` of its ``n_tokens``, or a little
    later. ``place`` names the part of the request, ``kind`` is the API's word for it."""

    kind: str
    place: str
    n_shared: int
    n_tokens: int

    @property
    def reason(self) -> dict[str, Any]:
        """The API's ``cache_miss_reason``."""
        if self.kind == "unavailable":
            return {"type": self.kind}
        return {"type": self.kind, "cache_missed_input_tokens": self.n_tokens - self.n_shared}


def fingerprint(model: str, prompt: Prompt) -> Fingerprint:
    """What is remembered of a prompt."""
    tokens = prompt.tokens
    n_whole = len(tokens) // _CHUNK * _CHUNK
    chunks = b"".join(_digest(tokens[at : at + _CHUNK]) for at in range(0, n_whole, _CHUNK))
    return Fingerprint(model, prompt.outline, len(tokens), chunks, _digest(tokens[n_whole:]))


def divergence(before: Fingerprint, now: Fingerprint, tokens: Sequence[int]) -> Divergence | None:
    """Where ``now``, the fingerprint of ``tokens``, leaves ``before``; None: it continues it."""
    n_chunks = _n_common(before.chunks, now.chunks)
    n_shared = n_chunks * _CHUNK
    has_all_chunks = n_chunks * _N_BYTES == len(before.chunks)
    if has_all_chunks and _digest(tokens[n_shared : before.n_tokens]) == before.tail:
        return None
    kind, place = _part(before, now)
    return Divergence(kind, place, n_shared, before.n_tokens)


def _part(before: Fingerprint, now: Fingerprint) -> tuple[str, str]:
    """The first part that differs. The model's name is none: all names share one cache."""
    old, new = before.outline, now.outline
    if old.system != new.system:
        return "system_changed", "system"
    if old.tools != new.tools:
        return "tools_changed", "tools"
    for i, (index, digest) in enumerate(old.messages):
        if i >= len(new.messages) or new.messages[i] != (index, digest):
            return "messages_changed", f"messages.{index}"
    if before.model != now.model:
        return "model_changed", "model"
    return "unavailable", "elsewhere"


def _n_common(left: bytes, right: bytes) -> int:
    """How many leading digests agree."""
    n = min(len(left), len(right)) // _N_BYTES
    if left[: n * _N_BYTES] == right[: n * _N_BYTES]:
        return n
    places = range(0, n * _N_BYTES, _N_BYTES)
    return next(
        i for i, at in enumerate(places) if left[at : at + _N_BYTES] != right[at : at + _N_BYTES]
    )


def _digest(tokens: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("i", tokens).tobytes(), digest_size=_N_BYTES).digest()


@dataclass(slots=True)
class Fingerprints:
    """Those of the replies given last, by message id."""

    capacity: int = 512
    _prints: OrderedDict[str, Fingerprint] = field(default_factory=OrderedDict)

    def remember(self, message_id: str, print_: Fingerprint) -> None:
        self._prints[message_id] = print_
        if len(self._prints) > self.capacity:
            self._prints.popitem(last=False)

    def diagnose(
        self, previous_id: str, now: Fingerprint, tokens: Sequence[int]
    ) -> dict[str, Any] | None:
        """The reply's ``diagnostics``: None where the earlier prompt is continued."""
        before = self._prints.get(previous_id)
        if before is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        self._prints.move_to_end(previous_id)
        found = divergence(before, now, tokens)
        if found is None:
            return None
        n_shared, n_tokens, place = found.n_shared, found.n_tokens, found.place
        logger.info("leaves %s at token %d of %d (%s)", previous_id, n_shared, n_tokens, place)
        return {"cache_miss_reason": found.reason}

    def __len__(self) -> int:
        return len(self._prints)

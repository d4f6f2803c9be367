"""One snapshot file: a head that says what it is, then the state as the model wrote it.

    fixed fields | label | tokens, int32 | sha256 of all that | zeros up to 64 | payload

Numbers are little-endian. The payload's own sum is in the fixed fields, so one file has one chain
of trust and its head can be read without its payload. The payload is not compressed: KV bytes
shrink by 4-9 % (``bench/disk_bytes.py``), which does not pay for losing ``mmap``.
"""

from __future__ import annotations

import enum
import hashlib
import os
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ratoon.errors import RatoonError

MAGIC = b"RATOONS\n"
VERSION = 1
ALIGN = 64
SUM_BYTES = 32
BLOCK_BYTES = 4 << 20  # the unit of hashing; blocks are hashed side by side
N_HASHERS = max(1, min(4, (os.cpu_count() or 1) // 2))  # the model needs the other cores
MAX_TOKENS = 1 << 28
MAX_LABEL = 1 << 10

# magic, version, kind, label bytes, tokens, tokens spared, payload bytes, fingerprint, payload sum
_FIXED = struct.Struct(f"<8sHHIIIQ16s{SUM_BYTES}s")


class BadSnapshot(RatoonError):
    """A file is not the snapshot it should be."""


class ForeignSnapshot(BadSnapshot):
    """A sound snapshot, but of another model, build or setting."""


class Kind(enum.IntEnum):
    """How much of a sequence's memory a state holds."""

    WHOLE = 0
    PARTIAL = 1  # only what can't be rolled back: a window or a recurrence, without the attention


@dataclass(frozen=True, slots=True)
class State:
    """What is to be kept. ``data`` is only borrowed: it must not change until it is written.

    ``n_spared`` is how many tokens it saves over the next shorter state there is; 0: all of them.
    """

    tokens: Sequence[int]
    data: memoryview
    kind: Kind = Kind.WHOLE
    n_spared: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """All of a file but its payload. ``n_head`` is where the payload begins."""

    fingerprint: str
    kind: Kind
    label: str
    tokens: array[int] = field(repr=False)
    n_spared: int
    n_payload: int
    payload_sum: bytes
    n_head: int

    @property
    def key(self) -> str:
        return state_key(self.fingerprint, self.kind, self.tokens)

    @property
    def n_bytes(self) -> int:
        return self.n_head + self.n_payload


def state_key(fingerprint: str, kind: Kind, tokens: Sequence[int]) -> str:
    """The name of a state, 32 hex digits: equal for equal tokens, whoever saved them."""
    digest = hashlib.blake2b(digest_size=16, key=bytes.fromhex(fingerprint))
    digest.update(bytes([kind]))
    digest.update(_token_bytes(tokens))
    return digest.hexdigest()


def file_bytes(label: str, state: State) -> int:
    """How large a state's file will be."""
    return _head_bytes(len(_label_bytes(label)), len(state.tokens))[1] + state.data.nbytes


def _head_bytes(n_label: int, n_tokens: int) -> tuple[int, int]:
    """Bytes that the head's sum covers, and bytes in front of the payload."""
    n_signed = _FIXED.size + n_label + 4 * n_tokens
    return n_signed, n_signed + SUM_BYTES + -(n_signed + SUM_BYTES) % ALIGN


def _label_bytes(label: str) -> bytes:
    return label.encode("utf-8", "replace")[:MAX_LABEL]


def pack_head(fingerprint: str, label: str, state: State) -> bytes:
    """The bytes in front of the payload."""
    name = _label_bytes(label)
    payload = state.data.cast("B")
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        state.kind,
        len(name),
        len(state.tokens),
        min(state.n_spared or len(state.tokens), len(state.tokens)),
        len(payload),
        bytes.fromhex(fingerprint),
        block_sum(len(payload), lambda start, end: payload[start:end]),
    )
    head = fixed + name + _token_bytes(state.tokens)
    head += hashlib.sha256(head).digest()
    return head + bytes(-len(head) % ALIGN)


def read_head(fd: int) -> Head:
    """The head of an open file, every byte of it checked. Raises BadSnapshot, OSError."""
    n_file = os.fstat(fd).st_size
    fixed = os.pread(fd, _FIXED.size, 0)
    if len(fixed) < _FIXED.size:
        raise BadSnapshot(f"it is torn: only {n_file} bytes")
    magic, version, kind, n_label, n_tokens, n_spared, n_payload, digest, total = _FIXED.unpack(
        fixed
    )
    if magic != MAGIC:
        raise BadSnapshot("it is no snapshot")
    if version != VERSION:
        raise BadSnapshot(f"its format is version {version}, not {VERSION}")
    if n_label > MAX_LABEL or n_tokens > MAX_TOKENS:
        raise BadSnapshot("its head is damaged")
    n_signed, n_head = _head_bytes(n_label, n_tokens)
    if n_head + n_payload != n_file:
        raise BadSnapshot(f"it has {n_file} bytes instead of {n_head + n_payload}")
    head = os.pread(fd, n_head, 0)
    signed, found = head[:n_signed], head[n_signed : n_signed + SUM_BYTES]
    if hashlib.sha256(signed).digest() != found or any(head[n_signed + SUM_BYTES :]):
        raise BadSnapshot("its head is damaged")
    if kind not in list(Kind):
        raise BadSnapshot(f"its kind is {kind}")
    label = signed[_FIXED.size : _FIXED.size + n_label].decode("utf-8", "replace")
    tokens = _tokens(signed[_FIXED.size + n_label :])
    return Head(digest.hex(), Kind(kind), label, tokens, n_spared, n_payload, total, n_head)


def check_payload(fd: int, head: Head, go_on: Callable[[], bool] = lambda: True) -> None:
    """Raise BadSnapshot unless the payload is what was written.

    It is read, not mapped: a read error of a mapped file would end the process. ``go_on`` is asked
    before each block; a no ends it with InterruptedError.
    """

    def read(start: int, end: int) -> bytes:
        if not go_on():
            raise InterruptedError("it is not wanted any more")
        return os.pread(fd, end - start, head.n_head + start)

    if block_sum(head.n_payload, read) != head.payload_sum:
        raise BadSnapshot("its payload is damaged")


def block_sum(n_bytes: int, read: Callable[[int, int], bytes | memoryview]) -> bytes:
    """The sha256 over the sha256 of every block of ``read(start, end)``."""

    def one(start: int) -> bytes:
        return hashlib.sha256(read(start, min(n_bytes, start + BLOCK_BYTES))).digest()

    starts = range(0, n_bytes, BLOCK_BYTES)
    if len(starts) < 2 or N_HASHERS < 2:
        return hashlib.sha256(b"".join(map(one, starts))).digest()
    with ThreadPoolExecutor(N_HASHERS) as pool:
        return hashlib.sha256(b"".join(pool.map(one, starts))).digest()


def _token_bytes(tokens: Sequence[int]) -> bytes:
    values = array("i", tokens)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _tokens(raw: bytes) -> array[int]:
    values = array("i", raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values

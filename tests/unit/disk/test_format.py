"""The file: what was written comes back, and nothing else does."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratoon.disk import format as format_
from ratoon.disk.format import (
    BLOCK_BYTES,
    VERSION,
    BadSnapshot,
    Head,
    Kind,
    State,
    block_sum,
    check_payload,
    file_bytes,
    pack_head,
    read_head,
    state_key,
)
from tests.unit.disk.states import PRINT, make_state

STATE = make_state(range(10), 300)
FILE = pack_head(PRINT.digest, PRINT.label, STATE) + STATE.data


def check(file: Path) -> Head:
    fd = os.open(file, os.O_RDONLY)
    try:
        return check_fd(fd)
    finally:
        os.close(fd)


def check_fd(fd: int) -> Head:
    head = read_head(fd)
    check_payload(fd, head)
    return head


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=200),
    data=st.binary(max_size=500),
    kind=st.sampled_from(Kind),
    label=st.text(max_size=40),
)
def test_a_head_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    tokens: list[int],
    data: bytes,
    kind: Kind,
    label: str,
) -> None:
    state = State(tokens, memoryview(data), kind)
    file = tmp_path_factory.getbasetemp() / "round-trip"
    file.write_bytes(pack_head(PRINT.digest, label, state) + data)
    head = check(file)
    assert head.tokens.tolist() == tokens
    assert (head.kind, head.fingerprint, head.n_spared) == (kind, PRINT.digest, len(tokens))
    assert head.label == label.encode("utf-8", "replace").decode()
    assert head.key == state_key(PRINT.digest, kind, tokens)
    assert head.n_bytes == file.stat().st_size == file_bytes(label, state)
    assert file.read_bytes()[head.n_head :] == data
    assert head.n_head % format_.ALIGN == 0


def test_every_torn_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for length in range(len(FILE)):
        file.write_bytes(FILE[:length])
        with pytest.raises(BadSnapshot):
            check(file)
    file.write_bytes(FILE + b"\0")
    with pytest.raises(BadSnapshot, match="bytes instead of"):
        check(file)


def test_every_flipped_bit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(FILE)
    fd = os.open(file, os.O_RDWR)
    try:
        for offset, byte in enumerate(FILE):
            for bit in range(8):
                os.pwrite(fd, bytes([byte ^ 1 << bit]), offset)
                with pytest.raises(BadSnapshot):
                    check_fd(fd)
            os.pwrite(fd, bytes([byte]), offset)
        check_fd(fd)
    finally:
        os.close(fd)


def test_a_zeroed_part_is_refused(tmp_path: Path) -> None:
    """What a crash without fsync leaves: the right length, and zeros in place of blocks."""
    file = tmp_path / "f"
    for start in range(0, len(FILE), 64):
        holed = FILE[:start] + bytes(len(FILE[start : start + 64])) + FILE[start + 64 :]
        if holed != FILE:
            file.write_bytes(holed)
            with pytest.raises(BadSnapshot):
                check(file)


def signed(**changes: object) -> bytes:
    """The file with other fixed fields and a right head sum."""
    names = ("magic", "version", "kind", "n_label", "n_tokens", "n_spared", "n_payload")
    values = list(format_._FIXED.unpack(FILE[: format_._FIXED.size]))
    for name, value in changes.items():
        values[names.index(name)] = value
    n_signed, n_head = format_._head_bytes(len(PRINT.label), len(STATE.tokens))
    head = format_._FIXED.pack(*values) + FILE[format_._FIXED.size : n_signed]
    head += hashlib.sha256(head).digest()
    return head + bytes(n_head - len(head)) + FILE[n_head:]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": b"RATOONX\n"}, "no snapshot"),
        ({"version": VERSION + 1}, f"version {VERSION + 1}, not {VERSION}"),
        ({"kind": 9}, "kind is 9"),
        ({"n_payload": 299}, "bytes instead of"),
        ({"n_payload": 2**64 - 1}, "bytes instead of"),
        ({"n_tokens": 2**32 - 1}, "head is damaged"),
        ({"n_tokens": 9, "n_payload": 304}, "head is damaged|bytes instead of"),
        ({"n_label": 60_000}, "head is damaged"),
    ],
)
def test_well_formed_nonsense_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    file = tmp_path / "f"
    file.write_bytes(signed())
    check(file)
    file.write_bytes(signed(**changes))
    with pytest.raises(BadSnapshot, match=reason):
        check(file)


def test_the_layout_stays_what_it_is() -> None:
    """A change of the layout must change ``VERSION``, or old files would be misread."""
    assert VERSION == 1
    assert FILE[:8] == b"RATOONS\n"
    assert struct.unpack_from("<HHIIIQ", FILE, 8) == (1, 0, len(PRINT.label), 10, 10, 300)
    assert FILE[32:48].hex() == PRINT.digest
    assert struct.unpack_from("<10i", FILE, 80 + len(PRINT.label)) == tuple(range(10))
    assert FILE[-300:] == STATE.data


def test_a_key_tells_tokens_kind_and_fingerprint_apart() -> None:
    digests = (PRINT.digest, "0" * 32)
    prefixes = [(), (1,), (1, 2), (258,), (1, 2, 3)]
    keys = {
        state_key(digest, kind, tokens)
        for digest in digests
        for kind in Kind
        for tokens in prefixes
    }
    assert len(keys) == len(digests) * len(Kind) * len(prefixes)


@pytest.mark.parametrize("n_hashers", [1, 3])
def test_blocks_hash_the_same_side_by_side(monkeypatch: pytest.MonkeyPatch, n_hashers: int) -> None:
    data = os.urandom(1000) * (3 * BLOCK_BYTES // 1000)
    monkeypatch.setattr(format_, "N_HASHERS", 1)
    one = block_sum(len(data), lambda start, end: data[start:end])
    monkeypatch.setattr(format_, "N_HASHERS", n_hashers)
    assert block_sum(len(data), lambda start, end: data[start:end]) == one
    swapped = data[BLOCK_BYTES : 2 * BLOCK_BYTES] + data[:BLOCK_BYTES] + data[2 * BLOCK_BYTES :]
    assert block_sum(len(data), lambda start, end: swapped[start:end]) != one

"""A fingerprint: equal for equal settings in every process, other for anything else."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratoon.disk import fingerprint
from ratoon.disk.fingerprint import MEMO, Fingerprint, files_digest
from tests.unit.disk.states import PRINT

CHANGES: dict[str, object] = {
    "model": "other",
    "build": "other",
    "kv_type": "q8_0",
    "flash_attn": "off",
    "memory": "window",
    "device": "cuda",
    "rope": "freq_base=1e6",
    "lora": ("a@1.0",),
    "is_exact": True,
}


def test_every_field_but_the_label_counts() -> None:
    assert set(CHANGES) | {"label"} == {field.name for field in dataclasses.fields(Fingerprint)}
    others = {dataclasses.replace(PRINT, **{k: v}).digest for k, v in CHANGES.items()}  # type: ignore[arg-type]
    assert len(others | {PRINT.digest}) == len(CHANGES) + 1
    assert dataclasses.replace(PRINT, label="x").digest == PRINT.digest


def test_fields_do_not_run_into_each_other() -> None:
    one = dataclasses.replace(PRINT, lora=("a", "b"))
    two = dataclasses.replace(PRINT, lora=("a,b",))
    three = dataclasses.replace(PRINT, lora=("b", "a"))
    assert len({one.digest, two.digest, three.digest}) == 3


def test_another_process_says_the_same() -> None:
    code = "from tests.unit.disk.states import PRINT; print(PRINT.digest)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == PRINT.digest


def old(file: Path, content: bytes) -> Path:
    """A file that was not changed lately, as far as its own times tell."""
    file.write_bytes(content)
    os.utime(file, (1, 1))
    return file


def test_every_byte_and_the_order_count(tmp_path: Path) -> None:
    one, two = old(tmp_path / "a", b"one"), old(tmp_path / "b", b"two")
    first = files_digest([one, two])
    assert files_digest([one, two]) == first
    assert files_digest([two, one]) != first
    assert files_digest([one]) != first
    old(two, b"twO")
    assert files_digest([one, two]) != first


def test_a_digest_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo = tmp_path / "memo"
    file = old(tmp_path / "model", b"x" * 100)
    monkeypatch.setattr(fingerprint, "_FRESH_S", -1e12)
    first = files_digest([file], memo)
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
        assert files_digest([file], memo) == first
    old(file, b"y" * 100)  # the same size and times, but for the one nobody can set
    assert files_digest([file], memo) != first
    assert len((memo / MEMO).read_text().splitlines()) == 3  # the old digest is gone


def test_a_file_changed_just_now_is_not_remembered(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"x")
    os.utime(file, (time.time(), time.time()))
    files_digest([file], tmp_path / "memo")
    assert not (tmp_path / "memo" / MEMO).exists()


@pytest.mark.parametrize("memo", ["", "[1]", "{", '{"a": 1}', '{"a": "zz"}', "\0\1"])
def test_a_damaged_memo_is_ignored(tmp_path: Path, memo: str) -> None:
    file = old(tmp_path / "model", b"x")
    (tmp_path / MEMO).write_text(memo)
    assert files_digest([file], tmp_path) == files_digest([file])


def test_a_memo_that_cant_be_written_is_done_without(tmp_path: Path) -> None:
    file = old(tmp_path / "model", b"x")
    assert files_digest([file], file / "below") == files_digest([file])

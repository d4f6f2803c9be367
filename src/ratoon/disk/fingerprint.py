"""What a saved state depends on besides its tokens. Another fingerprint: another state."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MEMO = "digests.json"
_CHUNK = 4 << 20
# A file changed this recently may change again without its times telling, so it is hashed again.
_FRESH_S = 2.0


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Two contexts with equal fingerprints may exchange states; ``label`` is for people only.

    ``rope`` holds what changes positions or their encoding: frequency base and scale, the scaling
    kind, and the window where the scaling depends on it.
    """

    model: str  # digest of the weights, all parts
    build: str  # digest of the llama.cpp libraries
    kv_type: str  # of keys and of values
    flash_attn: str
    memory: str  # the kind of the model's memory
    device: str = "cpu"  # where layers are computed
    rope: str = ""
    lora: tuple[str, ...] = ()  # digest and scale of each, in order
    is_exact: bool = False
    label: str = field(default="", compare=False)

    @property
    def digest(self) -> str:
        """32 hex digits, the same in every process."""
        values = dataclasses.asdict(self)
        del values["label"]
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"ratoon state").hexdigest()


def files_digest(files: Iterable[Path], memo_folder: Path | None = None) -> str:
    """The digest of the contents of some files, in order.

    Every byte counts. As hashing a large model takes seconds, digests are remembered in
    ``memo_folder`` for as long as a file's size, times and inode stay what they were.
    """
    memo = _read_memo(memo_folder)
    known = len(memo)
    total = hashlib.blake2b(digest_size=16)
    for file in files:
        total.update(bytes.fromhex(_digest(file.resolve(), memo)))
    if memo_folder is not None and len(memo) != known:
        _write_memo(memo_folder, memo)
    return total.hexdigest()


def _digest(file: Path, memo: dict[str, str]) -> str:
    stat = file.stat()
    facts = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev)
    name = f"{file} {' '.join(map(str, facts))}"
    if name in memo:
        return memo[name]
    with file.open("rb", buffering=0) as stream:
        digest = hashlib.file_digest(stream, hashlib.sha256).hexdigest()
    if time.time() - max(stat.st_mtime, stat.st_ctime) > _FRESH_S:
        for old in [each for each in memo if each.startswith(f"{file} ")]:
            del memo[old]
        memo[name] = digest
    return digest


def _read_memo(folder: Path | None) -> dict[str, str]:
    if folder is None:
        return {}
    try:
        memo = json.loads((folder / MEMO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_sound = isinstance(memo, dict) and all(_is_digest(value) for value in memo.values())
    return memo if is_sound else {}


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef")


def _write_memo(folder: Path, memo: dict[str, str]) -> None:
    part = folder / f"{MEMO}.{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(json.dumps(memo, indent=0), encoding="utf-8")
        part.replace(folder / MEMO)
    except OSError:
        part.unlink(missing_ok=True)  # without a memo the next start hashes again

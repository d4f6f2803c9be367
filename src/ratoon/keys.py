"""API keys: who may come in, as what, and how often. Only their digests are kept.

A leaf: the command line writes the file, the HTTP edge reads it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ratoon.errors import ConfigError

log = logging.getLogger("ratoon.keys")

VERSION = 1
PREFIX = "rtn-"
LOOK_S = 1.0  # a changed file counts after this
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Role(Enum):
    """What a key's owner may do: with its own domains and all models; with the server, too."""

    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Key:
    """One key. ``name`` is its tenant; ``per_minute`` 0: as many requests as it likes."""

    name: str
    digest: str = field(repr=False)
    role: Role = Role.USER
    per_minute: int = 0
    created_s: float = 0.0


def digest_of(secret: bytes) -> str:
    """Keys made here are random and long, so nothing slower is needed."""
    return hashlib.sha256(secret).hexdigest()


class KeyRing:
    """All keys that are let in: those given, and those of a file, which may change meanwhile.
    Belongs to one thread."""

    def __init__(
        self,
        keys: Iterable[Key] = (),
        file: Path | None = None,
        inner: Key | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``inner`` is the server's way to itself. Raises ConfigError for a file that can't be
        read."""
        self._own = {key.digest: key for key in keys}
        self._inner = inner
        self._file = file
        self._clock = clock
        self._looked_s = clock()
        self._seen = _seen(file)
        self._in_file = {key.digest: key for key in read_keys(file)} if file else {}

    @property
    def is_open(self) -> bool:
        """Whether anybody may come in."""
        return not self._own and self._file is None

    def find(self, secret: bytes) -> Key | None:
        """The key that this is. A look-up by digest tells nothing by the time it takes."""
        self._look()
        digest = digest_of(secret)
        if self._inner is not None and digest == self._inner.digest:
            return self._inner
        return self._own.get(digest) or self._in_file.get(digest)

    def is_inner(self, key: Key) -> bool:
        """Whether the server came to itself with it."""
        return key is self._inner

    def _look(self) -> None:
        """Read the file again if it has changed; one that can't be read lets nobody new in."""
        now = self._clock()
        if self._file is None or now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        seen = _seen(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._in_file = {key.digest: key for key in read_keys(self._file)}
        except ConfigError as error:
            log.warning("%s; the keys known so far stay", error)


def read_keys(file: Path) -> list[Key]:
    """Raises ConfigError."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']}")
        return [_key(item) for item in value["keys"]]
    except OSError as error:
        raise ConfigError(f"can't read the keys in {file}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{file} is no file of keys: {type(error).__name__}") from None


def add_key(file: Path, name: str, role: Role, per_minute: int) -> str:
    """Make a key and keep its digest; returns the key, which can't be had again. Raises
    ConfigError."""
    if not _NAME.fullmatch(name):
        raise ConfigError("a key's name is 1 to 64 letters, digits, dots, dashes or underscores")
    keys = read_keys(file) if file.exists() else []
    if any(key.name == name for key in keys):
        raise ConfigError(f"there is a key named {name} already")
    secret = PREFIX + secrets.token_urlsafe(32)
    key = Key(name, digest_of(secret.encode()), role, per_minute, time.time())
    _write(file, [*keys, key])
    return secret


def remove_key(file: Path, name: str) -> None:
    """Raises ConfigError."""
    keys = read_keys(file)
    left = [key for key in keys if key.name != name]
    if len(left) == len(keys):
        raise ConfigError(f"there is no key named {name}")
    _write(file, left)


def _key(item: Any) -> Key:
    name, digest, per_minute = item["name"], item["digest"], item["per_minute"]
    if not _NAME.fullmatch(name) or len(bytes.fromhex(digest)) != 32 or per_minute < 0:
        raise ValueError("no key")
    return Key(name, digest, Role(item["role"]), int(per_minute), float(item["created_s"]))


def _write(file: Path, keys: list[Key]) -> None:
    """All or nothing, and for the owner's eyes."""
    value = {
        "version": VERSION,
        "keys": [asdict(key) | {"role": key.role.value} for key in keys],
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                json.dump(value, out, indent=2)
                out.flush()
                os.fsync(out.fileno())
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"can't write the keys to {file}: {error.strerror}") from None


def _seen(file: Path | None) -> tuple[int, int] | None:
    """What changes when the file does."""
    try:
        stat = file.stat() if file else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_ino) if stat else None

"""Secrets on disk: encrypted, with a key in a file that only the user can read."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

KEY_FILE = "secrets.key"


class KeyBox:
    """Authenticated encryption (AES-128-CBC and HMAC-SHA256, as Fernet defines it)."""

    def __init__(self, key: bytes) -> None:
        """Raises ValueError for what is no key."""
        self._fernet = Fernet(key)

    @classmethod
    def open(cls, folder: Path) -> KeyBox:
        """With the folder's key, which is made if there is none. Raises OSError, ValueError."""
        file = folder / KEY_FILE
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return cls(file.read_bytes())
        with os.fdopen(handle, "wb") as out:
            key = Fernet.generate_key()
            out.write(key)
            out.flush()
            os.fsync(out.fileno())
        return cls(key)

    def lock(self, data: bytes) -> bytes:
        return self._fernet.encrypt(data)

    def unlock(self, data: bytes) -> bytes:
        """Raises ValueError for what was not locked with this key."""
        try:
            return self._fernet.decrypt(data)
        except InvalidToken:
            raise ValueError("not locked with this key") from None

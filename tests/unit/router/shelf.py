"""Records in memory, in place of those on disk."""

from __future__ import annotations


class Shelf:
    """Keeps them in the order in which they were last touched."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def load(self) -> list[tuple[str, bytes]]:
        return list(self.data.items())

    def put(self, name: str, data: bytes) -> None:
        self.data[name] = data

    def touch(self, name: str) -> None:
        self.data[name] = self.data.pop(name)

    def remove(self, name: str) -> None:
        self.data.pop(name, None)

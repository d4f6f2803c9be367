"""Bytes to text, piece by piece."""

from __future__ import annotations

import codecs


class Detokenizer:
    """Incremental UTF-8: a character comes out when its last byte is in, U+FFFD for what is
    not UTF-8. Any split of the same bytes gives the same text."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, piece: bytes) -> str:
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", final=True)

"""A vocabulary's tokens as masks and spellings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from ratoon.chat.vocab import Vocab


class Alphabet:
    """What the phases of a guide ask of a vocabulary. A mask has one bit for each token."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self.piece = vocab.piece
        self.is_end = vocab.is_end

    @cached_property
    def end_mask(self) -> bytes:
        """The tokens that end a turn."""
        return self.mask(t for t in range(self._vocab.n_tokens) if self.is_end(t))

    @cached_property
    def _of_byte(self) -> dict[int, int]:
        pieces = ((token, self.piece(token)) for token in range(self._vocab.n_tokens))
        return {piece[0]: token for token, piece in pieces if len(piece) == 1}

    def mask(self, tokens: Iterable[int]) -> bytes:
        bits = bytearray((self._vocab.n_tokens + 7) // 8)
        for token in tokens:
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def spell(self, raw: bytes) -> list[int] | None:
        """One token for each byte; None where the vocabulary lacks one."""
        tokens = [self._of_byte.get(byte) for byte in raw]
        found = [token for token in tokens if token is not None]
        return found if len(found) == len(raw) else None

    def of_mark(self, mark: str, n_begun: int = 0) -> list[int]:
        """The tokens of a mark of which some bytes have come; one where it is a token."""
        special = self._vocab.specials.get(mark)
        if special is not None:
            return [special.id]
        rest = mark.encode()[n_begun:]
        tokens = self._vocab.tokenize(rest.decode()) if mark.isascii() else []
        if b"".join(map(self.piece, tokens)) == rest:
            return tokens
        return self.spell(rest) or tokens


def either(left: bytes, right: bytes) -> bytes:
    """A mask of the tokens in one of two."""
    size = max(len(left), len(right))
    both = int.from_bytes(left, "little") | int.from_bytes(right, "little")
    return both.to_bytes(size, "little")

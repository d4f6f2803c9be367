"""A vocabulary's tokens as masks and spellings."""

from __future__ import annotations

from collections.abc import Iterable

from ratoon.chat.vocab import Vocab


class Alphabet:
    """What guides ask of a vocabulary. A mask has one bit for each token.

    ``pieces`` are the bytes of all tokens, ``ends`` the tokens that end a turn.
    """

    def __init__(self, vocab: Vocab) -> None:
        tokens = range(vocab.n_tokens)
        self.vocab = vocab
        self.pieces = [vocab.piece(token) for token in tokens]
        self.ends = [token for token in tokens if vocab.is_end(token)]
        self.end_mask = self.mask(self.ends)
        self._of_byte = {self.pieces[token][0]: token for token in tokens if self._is_byte(token)}

    def _is_byte(self, token: int) -> bool:
        return len(self.pieces[token]) == 1

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def mask(self, tokens: Iterable[int]) -> bytes:
        bits = bytearray((len(self.pieces) + 7) // 8)
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
        special = self.vocab.specials.get(mark)
        if special is not None:
            return [special.id]
        rest = mark.encode()[n_begun:]
        tokens = self.vocab.tokenize(rest.decode()) if mark.isascii() else []
        if b"".join(map(self.piece, tokens)) == rest:
            return tokens
        return self.spell(rest) or tokens


def either(left: bytes, right: bytes) -> bytes:
    """A mask of the tokens in one of two."""
    size = max(len(left), len(right))
    both = int.from_bytes(left, "little") | int.from_bytes(right, "little")
    return both.to_bytes(size, "little")

"""What the chat layer must know of a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Special:
    """A token whose text is markup. ``is_control``: plain tokenisation never yields it;
    otherwise it is a user-defined token that plain tokenisation would still form."""

    id: int
    is_control: bool


class Vocab(Protocol):
    """A model's tokenizer."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_id(self) -> int | None: ...

    @property
    def adds_bos(self) -> bool:
        """Whether a prompt begins with ``bos_id``."""
        ...

    @property
    def specials(self) -> Mapping[str, Special]:
        """Text of each control or user-defined token."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends the model's turn; there may be several that do."""
        ...

    def tokenize(self, text: str) -> list[int]:
        """Tokens of plain text; control tokens are never formed."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes of a token; markup tokens give their text."""
        ...

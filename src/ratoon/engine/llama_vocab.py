"""The tokenizer of a GGUF model, by llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property

import llama_cpp.llama_cpp as C

from ratoon.chat.vocab import Special
from ratoon.errors import ModelError


class LlamaVocab:
    """The tokenizer of a loaded model. Thread-safe."""

    def __init__(self, handle: C.llama_vocab_p) -> None:
        self._vocab = handle
        self._pieces: dict[int, bytes] = {}

    @cached_property
    def n_tokens(self) -> int:
        return int(C.llama_vocab_n_tokens(self._vocab))

    @cached_property
    def bos_id(self) -> int | None:
        return _optional(C.llama_vocab_bos(self._vocab))

    @cached_property
    def eos_id(self) -> int | None:
        return _optional(C.llama_vocab_eos(self._vocab))

    @cached_property
    def adds_bos(self) -> bool:
        return bool(C.llama_vocab_get_add_bos(self._vocab))

    @cached_property
    def specials(self) -> Mapping[str, Special]:
        controls = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        found: dict[str, Special] = {}
        for token in range(self.n_tokens):
            attr = C.llama_vocab_get_attr(self._vocab, token)
            if attr & (controls | C.LLAMA_TOKEN_ATTR_USER_DEFINED):
                text = C.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")
                if text:
                    found[text] = Special(id=token, is_control=bool(attr & controls))
        return found

    def tokenize(self, text: str) -> list[int]:
        return self._tokenize(text, parse_special=False)

    def tokenize_markup(self, text: str) -> list[int]:
        """Tokens of trusted text: control token texts become control tokens."""
        return self._tokenize(text, parse_special=True)

    def _tokenize(self, text: str, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "surrogatepass")
        room = len(raw) + 8
        buffer = (C.llama_token * room)()
        n = C.llama_tokenize(self._vocab, raw, len(raw), buffer, room, False, parse_special)
        if n < 0:
            raise ModelError(f"the tokenizer failed on {len(raw)} bytes of text")
        return buffer[:n]

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._piece(token)
        return known

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[:n]

    def is_end(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self._vocab, token))


def _optional(token: int) -> int | None:
    return None if token < 0 else int(token)

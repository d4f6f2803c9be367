"""Replies drawn at random under a guide, and what is in them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from jsonschema import Draft202012Validator

from ratoon import wire
from ratoon.chat.formats.call import Dialect
from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.parser import ReplyParser, TextDelta, ToolInput, ToolStart
from ratoon.chat.render import Prompt
from ratoon.chat.thinking import Reasoning
from ratoon.chat.vocab import Special
from ratoon.engine.request import Guide

Schemas = Mapping[str, Mapping[str, Any]]

# Tokens of several bytes, among them such that carry the end of a start and more.
PIECES = ("call>\n", '>\n{"', "</", '"}', ", ", "true", "null", "ca", "</think>\n", "aa")


class PieceVocab:
    """One token a byte, some longer ones, two ends of turn and the given markup tokens."""

    bos_id: int | None = None
    eos_id: int | None = 256
    adds_bos = False

    def __init__(self, controls: Iterable[str] = (), user_defined: Iterable[str] = ()) -> None:
        self._pieces = [bytes([n]) for n in range(256)] + [b"<end>", b"<stop>"]
        self._pieces += [piece.encode() for piece in PIECES]
        self.specials: dict[str, Special] = {
            "<end>": Special(256, is_control=True),
            "<stop>": Special(257, is_control=True),
        }
        for texts, is_control in ((controls, True), (user_defined, False)):
            for text in texts:
                self.specials[text] = Special(len(self._pieces), is_control)
                self._pieces.append(text.encode())
        self.n_tokens = len(self._pieces)

    def is_end(self, token: int) -> bool:
        return token in (256, 257)

    def tokenize(self, text: str) -> list[int]:
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def id_of(self, piece: str) -> int:
        return self._pieces.index(piece.encode())


def tokens_in(mask: bytes | None, n_tokens: int) -> list[int]:
    """The tokens that a mask lets come."""
    if mask is None:
        return list(range(n_tokens))
    bits = int.from_bytes(mask, "little")
    return [token for token in range(n_tokens) if bits >> token & 1]


def write(guide: Guide, vocab: PieceVocab, text: str, *, marks: bool = True) -> int:
    """Make the model write the text, a byte or a mark a token; how many bytes came to be."""
    n_bytes = 0
    while rest := text.encode()[n_bytes:]:
        found = [
            special.id
            for mark, special in vocab.specials.items()
            if marks and rest.startswith(mark.encode())
        ]
        token = found[0] if found else rest[0]
        if token not in tokens_in(guide.allowed(), vocab.n_tokens) or not guide.accept(token):
            break
        n_bytes += len(vocab.piece(token))
    return n_bytes


# Texts that end a string, which chance alone would hardly write.
CLOSERS = ("\n</parameter>\n", "</arg_value>", '<|"|>', '"')


def draw(guide: Guide, vocab: PieceVocab, source: random.Random) -> str | None:
    """A random reply up to the end of the turn, or to where it is free; None where that does not
    come."""
    raw = draw_bytes(guide, vocab, source)
    return None if raw is None else raw.decode()


def draw_bytes(
    guide: Guide, vocab: PieceVocab, source: random.Random, n_most: int = 1500
) -> bytes | None:
    """As ``draw``, for a reply of which some bytes have come."""
    raw = b""
    weights = [_weight(token, vocab) for token in range(vocab.n_tokens)]
    while len(raw) < n_most:
        mask = guide.allowed()
        if mask is None:
            return raw
        allowed = tokens_in(mask, vocab.n_tokens)
        assert allowed, f"no token may come after {raw!r}"
        if len(allowed) > 30 and source.random() < 0.1:
            closer = source.choice(CLOSERS)
            raw += closer.encode()[: write(guide, vocab, closer)]
            continue
        [token] = source.choices(allowed, [weights[token] for token in allowed])
        if not guide.accept(token):
            assert not vocab.is_end(token), f"nothing may come after {raw!r}"
            continue
        if vocab.is_end(token):
            return raw
        raw += vocab.piece(token)
    return None


def _weight(token: int, vocab: PieceVocab) -> float:
    """Closing tokens and markup come often, or no reply would end."""
    piece = vocab.piece(token)
    if token >= 256 or piece in (b'"', b"]", b"}", b")"):
        return 40.0
    return 1.0 if b" " <= piece <= b"~" else 0.02


def calls_in(reply: str, dialect: Dialect, tools: Schemas) -> tuple[list[tuple[str, str]], str]:
    """Names and arguments of the calls, and the text around them."""
    ids = count()
    parser = ReplyParser((), True, lambda: f"t{next(ids)}", dialect, tools)
    deltas = [*parser.feed(reply.encode()), *parser.finish()]
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, ToolStart):
            calls.append((delta.name, ""))
        elif isinstance(delta, ToolInput):
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + delta.partial_json)
    return calls, "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def is_valid(arguments: str, schema: Mapping[str, Any]) -> bool:
    """Whether the JSON text is a value of the schema."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return False
    return bool(Draft202012Validator(schema).is_valid(value))


def asked(tools: Schemas, **fields: Any) -> wire.MessagesRequest:
    """A request that offers the tools."""
    body = {
        "model": "m",
        "max_tokens": 100,
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": name, "input_schema": schema} for name, schema in tools.items()],
        **fields,
    }
    return wire.MessagesRequest.model_validate(body)


def prompted(
    tools: Schemas,
    dialect: str = "hermes",
    reasoning: Reasoning | None = None,
    *,
    parses_tools: bool = True,
) -> Prompt:
    return Prompt(
        tokens=[0],
        boundaries=(),
        fired={},
        has_late_run=False,
        parses_tools=parses_tools and bool(tools),
        text_len=1,
        dialect=DIALECTS[dialect],
        schemas=tools,
        reasoning=reasoning,
    )


def chosen(kind: str, name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **({"name": name} if name else {}), **fields}


def ends(mask: bytes | None, vocab: PieceVocab) -> Sequence[int]:
    """The tokens that may come, where only ends of turn may; otherwise none."""
    tokens = tokens_in(mask, vocab.n_tokens)
    return tokens if all(map(vocab.is_end, tokens)) else []

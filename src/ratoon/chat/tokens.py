"""Text to tokens, so that client text can never become a control token.

Before rendering, every client string is guarded: a sentinel, a Unicode noncharacter that the
request does not contain, is put into each text that the tokenizer knows as markup. What still
reads as markup after rendering was therefore written by the template, and becomes its token;
the sentinels are dropped and everything else is tokenised as plain text.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ratoon.chat.vocab import Special, Vocab
from ratoon.errors import InvalidRequest

NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))

_UNSENDABLE = re.compile("[\ud800-\udfff]")
_NONCHARACTER = re.compile("[\ufdd0-\ufdef]")
_CACHE_BYTES = 64 << 20
# How many outer characters of a markup text a template may itself put around a client's string,
# as templates do that print a schema key as ``<key>``.
_N_FRAME = 2


class Markup:
    """The texts of a vocabulary that are markup, and how to find them.

    Control tokens always are. A user-defined token is where the template writes it or its form
    says so; else it is ordinary text that happens to have its own token (runs of blanks, HTML
    tags in some vocabularies) and client text may form it, as plain tokenisation does.
    """

    def __init__(self, vocab: Vocab, template_source: str = "") -> None:
        self.specials: dict[str, Special] = {
            text: special
            for text, special in vocab.specials.items()
            if len(text) > 1 and _is_markup(text, special, template_source)
        }
        texts = list(self.specials)
        self.any = _pattern(texts)
        self.user_defined = _pattern(
            text for text, special in self.specials.items() if not special.is_control
        )
        self.starts = _pattern(texts, after_first=True)
        frames = range(1, _N_FRAME + 1)
        self.tails = _pattern(text[n:] for text in texts for n in frames)
        self.heads = _pattern(text[-1 - n :: -1] for text in texts for n in frames)
        self.cores = {text[n:-m] for text in texts for n in frames for m in frames} - {""}
        self.longest = max(map(len, texts), default=0)


class Guard:
    """Makes client strings safe to render, for one request.

    ``splice`` stands in rendered text for tokens that are put in as they are. ``seen`` collects
    the noncharacters that the client sent; a guard whose own are among them is of no use and must
    be replaced by ``Guard(markup, seen)``.
    """

    def __init__(self, markup: Markup, avoid: Iterable[str] = ()) -> None:
        taken = set(avoid)
        free = [char for char in NONCHARACTERS if char not in taken]
        if len(free) < 4:
            raise InvalidRequest("the request contains too many Unicode noncharacters")
        self.sentinel, self.end_mark, self.late_mark, self.splice = free[:4]
        self.seen: set[str] = set()
        self._markup = markup

    @property
    def is_sound(self) -> bool:
        own = (self.sentinel, self.end_mark, self.late_mark, self.splice)
        return self.seen.isdisjoint(own)

    def text(self, text: str) -> str:
        if not text.isascii():
            text = _UNSENDABLE.sub("\ufffd", text)
            self.seen.update(_NONCHARACTER.findall(text))
        markup, sentinel = self._markup, self.sentinel
        # Backwards, for the pattern of heads is one of reversed texts.
        is_open = markup.heads.match(text[: -markup.longest - 1 : -1])
        is_closing = markup.tails.match(text) or text in markup.cores
        guarded = markup.starts.sub(rf"\g<0>{sentinel}", text)
        return sentinel * bool(is_closing) + guarded + sentinel * bool(is_open)

    def value(self, value: Any) -> Any:
        """The same for every string and key inside a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return value


@dataclass(frozen=True, slots=True)
class Splices:
    """Tokens that are put in as they are: one sequence for each ``mark``, a single character."""

    mark: str
    tokens: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Tokenised:
    """``offsets``: for each cut, how many tokens lie wholly before it."""

    tokens: list[int]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Output:
    """What grows while a text is tokenised. ``pending``: the cuts still ahead, the next one
    last."""

    tokens: list[int]
    offsets: list[int]
    pending: list[int]

    def add_whole(self, tokens: Sequence[int], end: int) -> None:
        """Append what can't be cut; in the text it ends at offset ``end``."""
        while self.pending and self.pending[-1] < end:
            self.offsets.append(len(self.tokens))
            self.pending.pop()
        self.tokens.extend(tokens)


class PromptTokenizer:
    """Rendered, guarded text to tokens. Plain runs are remembered: a history grows at its end."""

    def __init__(self, vocab: Vocab, markup: Markup, cache_bytes: int = _CACHE_BYTES) -> None:
        self._vocab = vocab
        self._markup = markup
        self._cache = _RunCache(cache_bytes)

    def tokenize(
        self, text: str, sentinel: str, cuts: Sequence[int] = (), splices: Splices | None = None
    ) -> Tokenised:
        """``cuts`` are offsets into ``text``, in ascending order. No token reaches across a
        splice."""
        out = _Output([], [], list(reversed(cuts)))
        bos = self._vocab.bos_id if self._vocab.adds_bos else None
        if bos is not None and not self._begins_with(text, bos):
            out.tokens.append(bos)
        first, *segments = text.split(splices.mark) if splices else [text]
        self._add_segment(first, 0, sentinel, out)
        at = len(first)
        for spliced, segment in zip(splices.tokens if splices else (), segments, strict=True):
            at += 1
            out.add_whole(spliced, at)
            self._add_segment(segment, at, sentinel, out)
            at += len(segment)
        out.offsets.extend([len(out.tokens)] * len(out.pending))
        return Tokenised(out.tokens, tuple(out.offsets))

    @property
    def cached_bytes(self) -> int:
        return self._cache.n_bytes

    def count(self, text: str) -> int:
        """Tokens of a text that stands alone; no markup is looked for."""
        return len(self._plain(_UNSENDABLE.sub("\ufffd", text)))

    def _begins_with(self, text: str, token: int) -> bool:
        match = self._markup.any.match(text)
        return match is not None and self._markup.specials[match.group()].id == token

    def _add_segment(self, text: str, start: int, sentinel: str, out: _Output) -> None:
        """Append the tokens of text that begins at offset ``start``."""
        at = 0
        for match in self._markup.any.finditer(text):
            self._add_run(text[at : match.start()], start + at, sentinel, out)
            at = match.end()
            out.add_whole((self._markup.specials[match.group()].id,), start + at)
        self._add_run(text[at:], start + at, sentinel, out)

    def _add_run(self, run: str, start: int, sentinel: str, out: _Output) -> None:
        """Append a plain run's tokens, and the offsets of the cuts that fall before its end."""
        added = self._run(run, sentinel) if run else array("i")
        while out.pending and out.pending[-1] < start + len(run):
            head = run[: out.pending.pop() - start]
            out.offsets.append(len(out.tokens) + _n_common(self._run(head, sentinel), added))
        out.tokens.extend(added)

    def _run(self, run: str, sentinel: str) -> array[int]:
        if sentinel not in run:
            return self._plain(run)
        clean = run.replace(sentinel, "")
        if not self._markup.user_defined.search(clean):
            return self._plain(clean)
        tokens = array("i")
        for piece in self._apart(run, sentinel):
            tokens.extend(self._plain(piece))
        return tokens

    def _apart(self, run: str, sentinel: str) -> list[str]:
        """The run without sentinels, cut where one stood inside a user-defined token's text:
        plain tokenisation would form that token, but not from two pieces."""
        pieces, cut_at, n_clean = [], 0, 0
        clean = run.replace(sentinel, "")
        inside = _interiors(self._markup.user_defined, clean)
        for part in run.split(sentinel)[:-1]:
            n_clean += len(part)
            if n_clean in inside and n_clean > cut_at:
                pieces.append(clean[cut_at:n_clean])
                cut_at = n_clean
        return [*pieces, clean[cut_at:]]

    def _plain(self, text: str) -> array[int]:
        found = self._cache.get(text)
        if found is None:
            found = array("i", self._vocab.tokenize(text) if text else ())
            self._cache.put(text, found)
        return found


class _RunCache:
    """Recently used runs, within a byte bound.

    Two generations instead of an ordered map: a full young one becomes the old one. Each step is
    one dictionary operation, so that threads may share it; a race costs an entry, never an error.
    """

    def __init__(self, max_bytes: int) -> None:
        self._generation_bytes = max_bytes // 2
        self._young: dict[str, array[int]] = {}
        self._old: dict[str, array[int]] = {}
        self._young_bytes = self._old_bytes = 0

    @property
    def n_bytes(self) -> int:
        return self._young_bytes + self._old_bytes

    def get(self, text: str) -> array[int] | None:
        found = self._young.get(text)
        if found is None and (found := self._old.get(text)) is not None:
            self.put(text, found)
        return found

    def put(self, text: str, tokens: array[int]) -> None:
        size = sys.getsizeof(text) + sys.getsizeof(tokens)
        if size > self._generation_bytes:
            return
        if self._young_bytes + size > self._generation_bytes:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[text] = tokens
        self._young_bytes += size


def _is_markup(text: str, special: Special, template_source: str) -> bool:
    return special.is_control or text in template_source or "|" in text or "_" in text


def _interiors(pattern: re.Pattern[str], text: str) -> set[int]:
    """Every offset strictly inside a match, overlapping matches included."""
    inside: set[int] = set()
    at = 0
    while match := pattern.search(text, at):
        inside.update(range(match.start() + 1, match.end()))
        at = match.start() + 1
    return inside


def _n_common(left: array[int], right: array[int]) -> int:
    """The length of the common prefix; they differ near the end of the shorter, if at all."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


_NEVER = re.compile(r"(?!)")


def _pattern(texts: Iterable[str], *, after_first: bool = False) -> re.Pattern[str]:
    """One pattern for many texts, the longest first; a trie, for there may be thousands.

    With ``after_first`` it consumes one character and only looks at the rest, which finds every
    place where a text begins, overlapping ones too.
    """
    trie: dict[str, Any] = {}
    for text in filter(None, texts):
        node = trie
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    if not trie:
        return _NEVER
    if not after_first:
        return re.compile(_alternatives(trie))
    return re.compile("|".join(f"{re.escape(c)}(?={_alternatives(n)})" for c, n in trie.items()))


def _alternatives(node: dict[str, Any]) -> str:
    branches = [re.escape(char) + _alternatives(rest) for char, rest in node.items() if char]
    if not branches:
        return ""
    if len(branches) == 1 and "" not in node:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' * ('' in node)}"

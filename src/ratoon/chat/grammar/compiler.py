"""Sources to matchers, with llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark

from ratoon.chat.alphabet import Alphabet
from ratoon.chat.grammar.lark import Lark, any_of
from ratoon.chat.grammar.schema import pared
from ratoon.errors import RatoonError

Matcher = LLMatcher

_N_SCHEMAS = 1024
# Hundreds of tools, optional members or alternatives are more than the defaults allow at one point.
_LIMITS = LLParserLimits(max_items_in_row=20_000, step_max_items=200_000, verbose_errors=False)
_REASON = re.compile(r"(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?(.*)")


class TooLarge(RatoonError):
    """A grammar is beyond llguidance's limits."""


class Compiler:
    """Makes matchers for one vocabulary. ``marks`` are the texts of the dialect; those that are
    tokens must be written as such. Thread-safe, as all that is kept is in function caches."""

    def __init__(self, alphabet: Alphabet, marks: Collection[str]) -> None:
        specials = alphabet.vocab.specials
        self.tokens = {text: specials[text].id for text in marks if text in specials}
        self._alphabet = alphabet
        self._tokenizer = _tokenizer(alphabet, self.tokens.values())
        self._fitted = lru_cache(_N_SCHEMAS)(self._fit)
        self._regex = lru_cache(_N_SCHEMAS)(self._lark_regex)

    def spell(self, markup: str) -> list[int]:
        """Tokens that a matcher takes for a text of the dialect."""
        found: list[int] = []
        for part in any_of(self.tokens).split(markup):
            if part in self.tokens:
                found.append(self.tokens[part])
            else:
                alphabet = self._alphabet
                found += alphabet.spell(part.encode()) or alphabet.vocab.tokenize(part)
        return found

    def matcher(self, source: str) -> Matcher:
        """To be copied for each use. Raises TooLarge."""
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the slowest, and here no other request waits for it
        if matcher.is_error():
            raise TooLarge(_reason(matcher.get_error()))
        return matcher

    def lark(self, report: Callable[[str, str], None]) -> Lark:
        """For a new source. ``report`` hears whose schema can be kept only in part, and why."""

        def fit(subject: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
            fitted, reason = self._fitted(json.dumps(schema))
            if reason:
                report(subject, reason)
            return fitted

        return Lark(self.tokens, fit, self._regex)

    def _fit(self, text: str) -> tuple[dict[str, Any], str]:
        """The schema, or the most of it that can be kept and why it is not all."""
        schema = json.loads(text)
        schema.pop("x-guidance", None)
        first = ""
        lenient = {"x-guidance": {"lenient": True}}
        coerced = {"x-guidance": {"coerce_one_of": True}}
        plainest = {"type": schema["type"]} if schema.get("type") in _VALUES else {}
        for each in ({**schema, **coerced}, {**schema, **lenient}, {**pared(schema), **lenient}):
            error = self._error(f"start: %json {json.dumps(each)}")
            if not error:
                return each, first
            first = first or error
        return plainest, first

    def _lark_regex(self, pattern: str) -> str | None:
        """A regular expression in JSON schema's meaning, or None where it can't be kept."""
        found: str = regex_to_lark(pattern, "dw")
        return None if self._error(f"start: T\nT: /{found}/") else found

    def _error(self, source: str) -> str:
        grammar = LLMatcher.grammar_from_lark(source)
        return _reason(LLMatcher.validate_grammar(grammar, self._tokenizer, limits=_LIMITS))


_VALUES = ("string", "number", "integer", "boolean", "null", "array", "object")


def _reason(error: str) -> str:
    """What is wrong, in one line."""
    if not error or error.startswith("WARNING"):
        return ""
    found = _REASON.match(error)
    return found[1] if found else error


class _Tokens:
    """A vocabulary as llguidance wants it."""

    bos_token_id = None

    def __init__(self, alphabet: Alphabet, special_ids: Collection[int]) -> None:
        self._tokenize = alphabet.vocab.tokenize
        self.tokens = alphabet.pieces
        self.special_token_ids = sorted(special_ids)
        self.eos_token_id = next(iter(alphabet.ends), 0)

    def __call__(self, text: str) -> list[int]:
        return self._tokenize(text)


def _tokenizer(alphabet: Alphabet, marks: Collection[int]) -> LLTokenizer:
    specials = alphabet.vocab.specials.values()
    controls = {special.id for special in specials if special.is_control}
    wrapper = TokenizerWrapper(_Tokens(alphabet, {*controls, *marks, *alphabet.ends}))
    return LLTokenizer(wrapper, eos_token=alphabet.ends or [wrapper.eos_token_id])

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ratoon.chat.tokens import NONCHARACTERS, Guard, Markup, PromptTokenizer
from ratoon.chat.vocab import Special
from ratoon.errors import InvalidRequest
from tests.unit.chat.fakes import CHATML_TOOLS, CONTROLS, USER_DEFINED, ByteVocab

SPECIAL_TEXTS = (*CONTROLS, *USER_DEFINED[:-1])
MARKUP = Markup(ByteVocab(), CHATML_TOOLS + "<think>")
MARKUP_IDS = {special.id for special in MARKUP.specials.values()}

pieces = st.sampled_from([*SPECIAL_TEXTS, "<", "|", ">", "im_end", "s", "<|im_", "é", "\n\n"])
hostile = st.lists(pieces | st.text(max_size=4), max_size=12).map("".join)
json_values = st.recursive(
    hostile | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile, inner, max_size=3),
    max_leaves=8,
)


def tokens_of(guarded: str, guard: Guard) -> list[int]:
    return PromptTokenizer(ByteVocab(), MARKUP).tokenize(guarded, guard.sentinel).tokens


@given(hostile)
def test_client_text_never_yields_markup(body: str) -> None:
    guard = Guard(MARKUP)
    tokens = tokens_of(guard.text(body), guard)
    assert MARKUP_IDS.isdisjoint(tokens)
    assert ByteVocab().text(tokens) == body


@given(hostile, st.sampled_from(SPECIAL_TEXTS), st.integers(1, 2), st.integers(1, 2))
def test_a_templates_frame_never_completes_client_text(
    body: str, special: str, n_before: int, n_after: int
) -> None:
    """As a template that prints a schema key between angle brackets would."""
    guard = Guard(MARKUP)
    core = special[n_before:-n_after]
    assume(body and core)
    for client in (body, core, special[n_before:], special[:-n_after]):
        framed = special[:n_before] + guard.text(client) + special[-n_after:]
        assert MARKUP_IDS.isdisjoint(tokens_of(framed, guard))


@given(json_values)
def test_values_are_guarded_to_the_last_key(value: Any) -> None:
    guard = Guard(MARKUP)
    for text in _strings(guard.value(value)):
        assert MARKUP_IDS.isdisjoint(tokens_of(text, guard))


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for pair in value.items() for item in pair for s in _strings(item)]
    return [s for item in value for s in _strings(item)] if isinstance(value, list) else []


def test_template_markup_becomes_its_tokens() -> None:
    vocab, guard = ByteVocab(), Guard(MARKUP)
    tokens = tokens_of("<|im_start|>" + guard.text("<|im_end|>") + "<tool_call><|im", guard)
    ids = [vocab.specials[text].id for text in ("<|im_start|>", "<tool_call>", "<|im")]
    assert [token for token in tokens if token >= 256] == ids


def test_clean_text_is_not_touched() -> None:
    guard = Guard(MARKUP)
    assert guard.text("if a < b > c: [x]\n\n<b>") == "if a < b > c: [x]\n\n<b>"


def test_ordinary_user_defined_tokens_still_form() -> None:
    guard = Guard(MARKUP)
    blank_line = ByteVocab().specials["\n\n"].id
    assert tokens_of(guard.text("a\n\nb"), guard) == [ord("a"), blank_line, ord("b")]


def test_bos_is_added_once() -> None:
    vocab = ByteVocab(adds_bos=True)
    tokenizer = PromptTokenizer(vocab, MARKUP)
    for rendered in ("a", "<s>a"):
        assert tokenizer.tokenize(rendered, NONCHARACTERS[0]).tokens == [256, ord("a")]


def test_cuts_count_the_tokens_wholly_before_them() -> None:
    tokenizer = PromptTokenizer(ByteVocab(), MARKUP)
    rendered = "<|im_start|>é<|im_end|>\n"
    cuts = [0, 5, 12, 13, 23, 24]
    found = tokenizer.tokenize(rendered, NONCHARACTERS[0], cuts)
    assert len(found.tokens) == 5
    assert found.offsets == (0, 0, 1, 3, 4, 5)


def test_noncharacters_of_the_client_are_avoided() -> None:
    first = Guard(MARKUP)
    first.text(f"a{NONCHARACTERS[0]}b")
    assert not first.is_sound
    assert Guard(MARKUP, first.seen).sentinel == NONCHARACTERS[1]
    with pytest.raises(InvalidRequest):
        Guard(MARKUP, NONCHARACTERS)


def test_lone_surrogates_become_replacement_characters() -> None:
    assert Guard(MARKUP).text("a\ud800b") == "a\ufffdb"


def test_known_runs_are_not_tokenised_again() -> None:
    vocab = ByteVocab()
    tokenizer = PromptTokenizer(vocab, MARKUP)
    history = "<|im_start|>user\nhello<|im_end|>"
    tokenizer.tokenize(history, NONCHARACTERS[0])
    before = vocab.n_calls
    tokenizer.tokenize(history + "more", NONCHARACTERS[0])
    assert vocab.n_calls == before + 1


def test_run_cache_is_bounded() -> None:
    vocab = ByteVocab()
    tokenizer = PromptTokenizer(vocab, MARKUP, cache_bytes=4_000)
    for n in range(100):
        tokenizer.tokenize(f"run number {n}", NONCHARACTERS[0])
    assert tokenizer.cached_bytes <= 4_000
    before = vocab.n_calls
    tokenizer.tokenize("x" * 10_000, NONCHARACTERS[0])
    tokenizer.tokenize("run number 99", NONCHARACTERS[0])
    assert vocab.n_calls == before + 1


def test_vocabulary_without_specials() -> None:
    class Bare(ByteVocab):
        @property
        def specials(self) -> Mapping[str, Special]:
            return {}

    markup = Markup(Bare())
    guard = Guard(markup)
    assert guard.text("<s>") == "<s>"
    assert PromptTokenizer(Bare(), markup).tokenize("<s>", guard.sentinel).tokens == [*b"<s>"]

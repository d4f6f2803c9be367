"""The same promises with a real vocabulary."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratoon.chat.normalise import Rules
from ratoon.chat.render import Renderer
from ratoon.chat.tokens import Guard, Markup, PromptTokenizer
from ratoon.engine.llama import load_vocab
from ratoon.engine.llama_vocab import LlamaVocab
from tests.unit.chat.fakes import CHATML_TOOLS, request, smollm2_path, template, text

pytestmark = pytest.mark.model

words = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<", "|>", "im_end", "é", " a"]
)
hostile = st.lists(words | st.text(max_size=4), max_size=10).map("".join)
clean = st.lists(st.sampled_from(["a b", "é", "\n\n", "  x", "def f():\n    pass", "<", "'ll"]))


@pytest.fixture(scope="module")
def vocab() -> LlamaVocab:
    return load_vocab(smollm2_path())


@settings(deadline=None)
@given(hostile)
def test_client_text_never_yields_control_tokens(vocab: LlamaVocab, body: str) -> None:
    markup = Markup(vocab, CHATML_TOOLS)
    guard = Guard(markup)
    tokens = PromptTokenizer(vocab, markup).tokenize(guard.text(body), guard.sentinel).tokens
    assert {special.id for special in vocab.specials.values()}.isdisjoint(tokens)


@settings(deadline=None)
@given(clean.map("".join))
def test_clean_text_is_tokenised_as_llama_cpp_does(vocab: LlamaVocab, body: str) -> None:
    chatml = template(CHATML_TOOLS)
    prompt = Renderer(chatml, vocab, Rules()).render(request(("user", body + ".")))
    message = {"role": "user", "content": body + "."}
    assert prompt.tokens == vocab.tokenize_markup(chatml.render([message], None, True))


def test_boundary_inside_a_run_is_shared_with_what_parts_there(vocab: LlamaVocab) -> None:
    made = Renderer(template(CHATML_TOOLS), vocab, Rules())
    mark = text("You are an agent", cache_control={"type": "ephemeral"})
    prompts = [
        made.render(request(("user", "x"), system=[mark, text(rest)])) for rest in ("s", ". Be")
    ]
    shared = prompts[0].boundaries[0]
    assert shared == prompts[1].boundaries[0]
    assert prompts[0].tokens[:shared] == prompts[1].tokens[:shared]
    assert shared > 4

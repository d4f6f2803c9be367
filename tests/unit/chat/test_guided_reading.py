"""Guides and readings agree on what is a call where markup alone does not tell it."""

from __future__ import annotations

import random

import pytest

from ratoon.chat.formats.call import Dialect
from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.grammar.calls import marks
from tests.guiding import calls_in, draw, draw_bytes, is_valid, prompted, write
from tests.unit.chat.test_guide import (
    MAKERS,
    MARKED,
    PLAIN,
    PLAIN_MAKER,
    SMALL,
    each_dialect,
    guided,
    plain,
)

N_REPLIES = 60
CHANNELS = [
    "<|channel|>commentary to=",
    "<|channel|>analysis to=",
    "<|channel|>commentary <|constrain|>json to=",
    "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant to=",
    "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary to=",
    "<|start|>assistant<|channel|>analysis to=",
]


@pytest.mark.parametrize("is_marked", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("begun", CHANNELS)
def test_a_recipient_begins_a_call_wherever_it_stands(begun: str, is_marked: bool) -> None:
    vocab = MARKED["gpt_oss"] if is_marked else PLAIN
    maker = MAKERS["gpt_oss"] if is_marked else PLAIN_MAKER
    guide = guided(maker, prompted(SMALL, "gpt_oss"))
    assert write(guide, vocab, begun[:-1]) == len(begun) - 1
    assert guide.allowed() is None
    assert write(guide, vocab, "=python") == 1
    assert write(guide, vocab, "functions.nothing") == 17
    reply = draw(guide, vocab, random.Random(begun))
    assert reply is not None
    calls, text = calls_in(f"{begun}functions.nothing{reply}", DIALECTS["gpt_oss"], SMALL)
    assert (calls, text) == ([("nothing", "{}")], "")


def test_channels_without_a_recipient_are_free() -> None:
    guide = plain("gpt_oss")
    for text in (
        "<|channel|>commentary<|message|>commentary to=python<|end|>",
        "<|start|>functions.x to=assistant<|channel|>commentary<|message|>5<|end|>",
        "<|start|>assistant<|channel|>final<|message|>to=functions.",
    ):
        assert write(guide, PLAIN, text) == len(text)
        assert guide.allowed() is None


def test_data_in_a_fenced_block_is_free() -> None:
    guide = plain("gemma")
    for text in ('```json\n{"name": "a", "version": 1}\n```', '```json\nno " json\n```\n'):
        assert write(guide, PLAIN, text) == len(text)
        assert guide.allowed() is None
    assert write(guide, PLAIN, '```json\n{ "name": "find", "version"') == 27


# What gets past a guide that reads otherwise than the reader.
JUNK = (
    *(
        '"',
        "{",
        "}",
        "[",
        ":",
        ",",
        ";",
        "\\",
        "\n",
        " ",
        "\u2003",
        "\x85",
        "\x1c",
        "x",
        "```",
        "é",
    ),
    *('{"name": "', '"name": "', "find", "nothing", "other", '"find"', "assistant", "json", " to="),
    *('", "parameters": {', '"arguments": {}', '"type": "function", ', "commentary", "analysis"),
    *("functions.", "functions.find", "python", "{}", "}}", "(x=1)", '{"n\\u0061me": "find"'),
    *("commentary code to=python<|message|>{}", "assistant json to=find<|message|>{}"),
    *('{"parameters": {}, "name": "find"}', '{"name": "find"}', '[{"name": "find"}]'),
)


def pieces_of(dialect: Dialect) -> list[str]:
    """Markup of the dialect, and calls that nobody asked for."""
    found = {text for form in dialect.forms for text in (form.start, form.end)} | marks(dialect)
    for form in dialect.forms:
        for layout in form.layouts:
            found.update((layout.before, layout.after, *layout.signals(SMALL)))
        for name in ("find", "other"):
            found.add(f'{form.start}{{"name": "{name}", "arguments": {{}}}}{form.end}')
            found.add(f'{form.start}{{"parameters": {{}}, "name": "{name}"}}{form.end}')
            found.add(f"{form.start}functions.{name}<|message|>{{}}{form.end}")
    return sorted(found - {""})


@each_dialect
@pytest.mark.parametrize("is_marked", [False, True], ids=["text", "tokens"])
def test_no_call_is_read_that_was_not_guided(dialect: str, is_marked: bool) -> None:
    source = random.Random(f"{dialect} {is_marked} loose")
    vocab = MARKED[dialect] if is_marked else PLAIN
    maker = MAKERS[dialect] if is_marked else PLAIN_MAKER
    markup = pieces_of(DIALECTS[dialect])
    for _ in range(N_REPLIES):
        guide = guided(maker, prompted(SMALL, dialect))
        reply = b""
        for _ in range(source.randint(1, 8)):
            text = source.choice(markup if source.random() < 0.5 else JUNK)
            reply += text.encode()[: write(guide, vocab, text, marks=is_marked)]
        rest = draw_bytes(guide, vocab, source)
        if rest is None:
            continue
        whole = (reply + rest).decode(errors="replace")
        for name, arguments in calls_in(whole, DIALECTS[dialect], SMALL)[0]:
            assert name in SMALL, whole
            assert is_valid(arguments, SMALL[name]), (whole, arguments)

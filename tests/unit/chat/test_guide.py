"""Guides: what may come in a reply, in every dialect and for every wish."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pytest

from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.grammar.calls import marks
from ratoon.chat.guides import GuideMaker
from ratoon.chat.render import Prompt
from ratoon.chat.thinking import Reasoning
from ratoon.engine.request import Guide
from ratoon.errors import InvalidRequest
from tests.guiding import (
    PieceVocab,
    Schemas,
    asked,
    calls_in,
    chosen,
    draw,
    ends,
    is_valid,
    prompted,
    tokens_in,
    write,
)
from tests.schemas import AGENT_TOOLS, ODD_SCHEMAS, SERVER_TOOLS

TOOLS = {**AGENT_TOOLS, **SERVER_TOOLS}
SMALL = {"nothing": AGENT_TOOLS["nothing"], "find": AGENT_TOOLS["find"]}
THINK = Reasoning()
OPEN = Reasoning(is_open=True)
ANY: dict[str, Any] = {"tool_choice": chosen("any")}
FORMAT: dict[str, Any] = {
    "output_config": {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"answer": {"type": "integer"}},
                "required": ["answer"],
            },
        }
    }
}

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)

PLAIN = PieceVocab()
MARKED = {
    name: PieceVocab(sorted(marks(dialect) - {"<tool_call>"}), ["<tool_call>"])
    for name, dialect in DIALECTS.items()
}
PLAIN_MAKER = GuideMaker(PLAIN)
MAKERS = {name: GuideMaker(vocab) for name, vocab in MARKED.items()}


def guided(maker: GuideMaker, prompt: Prompt, **fields: Any) -> Guide:
    guide = maker.guide(asked(prompt.schemas, **fields), prompt)
    assert guide is not None
    return guide


def plain(dialect: str = "hermes", reasoning: Reasoning | None = None, **fields: Any) -> Guide:
    parses = fields.get("tool_choice") != chosen("none")
    prompt = prompted(SMALL, dialect, reasoning, parses_tools=parses)
    return guided(PLAIN_MAKER, prompt, **fields)


def valid_calls(reply: str, dialect: Dialect) -> list[str]:
    """The names of the calls in a reply that is nothing else."""
    calls, text = calls_in(reply, dialect, TOOLS)
    assert text.strip() == ""
    assert calls, reply
    for name, arguments in calls:
        assert is_valid(arguments, TOOLS[name]), (reply, arguments)
    return [name for name, _ in calls]


def begun(form: Form, tools: Schemas) -> str:
    """The start of the form, and what tells that it is a call."""
    return form.start + next(iter(form.layouts[0].signals(tools)), "")


# --- every dialect --------------------------------------------------------------------------------


@each_dialect
@pytest.mark.parametrize("is_marked", [False, True], ids=["text", "tokens"])
def test_forced_calls_are_valid(dialect: str, is_marked: bool) -> None:
    source = random.Random(f"{dialect} {is_marked}")
    vocab = MARKED[dialect] if is_marked else PLAIN
    maker = MAKERS[dialect] if is_marked else PLAIN_MAKER
    prompt = prompted(TOOLS, dialect)
    called = set()
    for name in TOOLS:
        for _ in range(8):
            guide = guided(maker, prompt, tool_choice=chosen("tool", name))
            reply = draw(guide, vocab, source)
            if reply is not None:
                called.update(valid_calls(reply, DIALECTS[dialect]))
                break
    assert called == set(TOOLS)


@each_dialect
def test_calls_after_a_start_are_valid(dialect: str) -> None:
    """Every form, from behind its start on, up to its end; then text is free again."""
    source = random.Random(dialect)
    for form in DIALECTS[dialect].forms:
        if not form.layouts:
            continue
        n_calls = 0
        for _ in range(6):
            guide = guided(PLAIN_MAKER, prompted(TOOLS, dialect))
            start = begun(form, TOOLS)
            assert write(guide, PLAIN, start) == len(start.encode())
            assert guide.allowed() is not None
            rest = draw(guide, PLAIN, source)
            if rest is not None:
                n_calls += len(valid_calls(start + rest, DIALECTS[dialect]))
                assert guide.accept(ord("x"))
        assert n_calls


@each_dialect
def test_markup_that_is_a_token_is_written_as_one(dialect: str) -> None:
    vocab = MARKED[dialect]
    reply = None
    guide = guided(MAKERS[dialect], prompted(SMALL, dialect), tool_choice=chosen("tool", "nothing"))
    written = []
    source = random.Random(dialect)
    while True:
        token = source.choice(tokens_in(guide.allowed(), vocab.n_tokens))
        if not guide.accept(token):
            continue
        if vocab.is_end(token):
            break
        written.append(token)
    reply = b"".join(map(vocab.piece, written)).decode()
    ids = {special.id: text for text, special in vocab.specials.items()}
    for mark in marks(DIALECTS[dialect]):
        tokens = sum(ids.get(token) == mark for token in written)
        longer = sum(reply.count(other) for other in vocab.specials if mark in other != mark)
        assert tokens >= reply.count(mark) - longer, mark


@each_dialect
def test_no_call_starts_where_none_may(dialect: str) -> None:
    for form in DIALECTS[dialect].forms:
        if not form.layouts:
            continue
        start = begun(form, SMALL)
        guide = plain(dialect, tool_choice=chosen("none"))
        assert guide.allowed() is None
        assert write(guide, PLAIN, start) < len(start.encode())
        assert guide.accept(ord("x"))
        assert guide.accept(256)


@each_dialect
def test_one_call_only(dialect: str) -> None:
    source = random.Random(dialect)
    for kind in ("any", "auto"):
        choice = chosen(kind, disable_parallel_tool_use=True)
        for _ in range(6):
            guide = plain(dialect, tool_choice=choice)
            form = DIALECTS[dialect].forms[0]
            start = begun(form, SMALL)
            if kind == "auto":
                write(guide, PLAIN, start)
            reply = draw(guide, PLAIN, source)
            if reply is not None:
                reply = start + reply if kind == "auto" else reply
                assert len(valid_calls(reply, DIALECTS[dialect])) == 1


# --- free text ------------------------------------------------------------------------------------


def test_text_is_free_until_a_call_starts() -> None:
    guide = plain()
    for text in ("Some <tool> text, ", "<tool_cal", "m> and <tool_call"):
        assert write(guide, PLAIN, text) == len(text)
        assert guide.allowed() is None
    assert write(guide, PLAIN, ">") == 1
    assert tokens_in(guide.allowed(), PLAIN.n_tokens) == [ord("\n")]


def test_a_token_that_ends_a_start_carries_more() -> None:
    fits, clashes = plain(), plain()
    for guide in (fits, clashes):
        write(guide, PLAIN, "x <tool_")
    assert fits.accept(PLAIN.id_of("call>\n"))
    assert tokens_in(fits.allowed(), PLAIN.n_tokens) == [ord("{")]
    vocab = PieceVocab()
    vocab._pieces[PLAIN.id_of("call>\n")] = b"call> no"
    clashes = guided(GuideMaker(vocab), prompted(SMALL))
    write(clashes, vocab, "x <tool_")
    assert not clashes.accept(PLAIN.id_of("call>\n"))
    assert clashes.allowed() is None
    assert write(clashes, vocab, "call>\n") == 6


def test_only_declared_names_come() -> None:
    guide = plain()
    write(guide, PLAIN, '<tool_call>\n{"name": "')
    assert tokens_in(guide.allowed(), PLAIN.n_tokens) == [ord("f"), ord("n")]


def test_blanks_do_not_run_on() -> None:
    text = '<tool_call>\n{"name": "find", "arguments": {"pattern":  '
    assert write(plain(), PLAIN, text) == len(text) - 1


def test_several_calls_with_text_between() -> None:
    guide = plain()
    call = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
    for text in ("First.", call, "\n", call, " Then <b>text</b>.", call):
        assert write(guide, PLAIN, text) == len(text)
    assert guide.accept(257)


def test_data_that_looks_like_the_beginning_of_a_call_is_free() -> None:
    for text in ('{"answer": 5}', '{"names": []} {"name": "x"}', "{}", 'See {"name": "x"}'):
        guide = plain("llama3")
        assert write(guide, PLAIN, text) == len(text)
        assert guide.allowed() is None
    guide = plain("llama3")
    assert write(guide, PLAIN, ' \n{ "name" : "find"') == 19
    assert guide.allowed() is not None
    fenced = '```json\n{"name": "x", "text": "<|tool_call>"}\n```\n'
    guide = plain("gemma")
    assert write(guide, PLAIN, fenced) == len(fenced)
    assert write(guide, PLAIN, "<|tool_call>x") == len("<|tool_call>")


def test_a_second_end_of_turn_works_too() -> None:
    guide = plain(tool_choice=chosen("tool", "nothing", disable_parallel_tool_use=True))
    write(guide, PLAIN, '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>')
    assert ends(guide.allowed(), PLAIN) == [256, 257]
    assert guide.accept(257)


# --- choices --------------------------------------------------------------------------------------


def test_any_begins_with_a_call_and_ends_after_calls() -> None:
    guide = plain(**ANY)
    assert write(guide, PLAIN, "x") == 0
    call = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
    assert write(guide, PLAIN, f"{call}\n{call}") == 2 * len(call) + 1
    assert tokens_in(guide.allowed(), PLAIN.n_tokens) == [ord("\n"), 256, 257]


def test_a_chosen_tool_is_the_only_one() -> None:
    guide = plain(tool_choice=chosen("tool", "find"))
    assert write(guide, PLAIN, '<tool_call>\n{"name": "n') == 22
    assert write(guide, PLAIN, "find") == 4


def test_without_tools_a_reply_is_free() -> None:
    prompt = prompted({})
    assert PLAIN_MAKER.guide(asked({}), prompt) is None
    assert PLAIN_MAKER.guide(asked({}, tool_choice=chosen("none")), prompt) is None


# --- structured output ----------------------------------------------------------------------------


def test_structured_output_is_one_value() -> None:
    old = {"output_format": FORMAT["output_config"]["format"]}
    for fields in (FORMAT, old):
        guide = guided(PLAIN_MAKER, prompted({}), **fields)
        assert write(guide, PLAIN, '{"answer": 42}') == 14
        assert ends(guide.allowed(), PLAIN) == [256, 257]


@each_dialect
def test_structured_output_or_calls(dialect: str) -> None:
    guide = plain(dialect, **FORMAT)
    answer = DIALECTS[dialect].answer + '{"answer": 4}'
    assert write(guide, PLAIN, answer) == len(answer)
    assert ends(guide.allowed(), PLAIN)
    form = next(f for f in DIALECTS[dialect].forms if not f.start.startswith("{"))
    assert write(plain(dialect, **FORMAT), PLAIN, form.start) == len(form.start.encode())
    assert write(plain(dialect, **FORMAT, **ANY), PLAIN, answer) < len(answer)
    barred = plain(dialect, **FORMAT, tool_choice=chosen("none"))
    call = begun(form, SMALL)
    assert write(barred, PLAIN, call) < len(call.encode())
    barred = plain(dialect, **FORMAT, tool_choice=chosen("none"))
    assert write(barred, PLAIN, answer) == len(answer)


@pytest.mark.parametrize(
    "name",
    [
        *("look_ahead", "negated", "remote", "odd_type", "impossible"),
        *("endless", "itself", "only_itself", "linked", "deep"),
    ],
)
def test_structured_output_that_can_not_be_kept_is_refused(name: str) -> None:
    output = {"type": "json_schema", "schema": ODD_SCHEMAS[name]}
    for fields, where in (
        ({"output_config": {"format": output}}, r"output_config\.format\.schema: .+"),
        ({"output_format": output}, r"output_format\.schema: .+"),
    ):
        with pytest.raises(InvalidRequest, match=where):
            PLAIN_MAKER.guide(asked({}, **fields), prompted({}))


def test_a_bound_reply_has_its_channel() -> None:
    analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.find"
    for vocab, maker in ((PLAIN, PLAIN_MAKER), (MARKED["gpt_oss"], MAKERS["gpt_oss"])):
        for begun in ("", analysis):
            guide = guided(maker, prompted({}, "gpt_oss"), **FORMAT)
            text = begun + '<|channel|>final<|message|>{"answer": 4}'
            assert write(guide, vocab, text) == len(text)
            assert ends(guide.allowed(), vocab) == [256, 257]
            guide = guided(maker, prompted(SMALL, "gpt_oss"), **ANY)
            assert write(guide, vocab, begun + call) == len(begun + call)
        guide = guided(maker, prompted(SMALL, "gpt_oss"), **ANY)
        assert write(guide, vocab, '{"answer"') == 0
        assert write(guide, vocab, analysis) == len(analysis)
        assert write(guide, vocab, analysis) < len(analysis)


# --- reasoning ------------------------------------------------------------------------------------


def test_nothing_is_bound_inside_reasoning() -> None:
    call = "<tool_call> I could call a tool. "
    for reasoning, start in ((OPEN, ""), (THINK, " <think>")):
        guide = plain(reasoning=reasoning)
        assert write(guide, PLAIN, start + call) == len(start + call)
        assert guide.allowed() is None
        assert write(guide, PLAIN, "</think>\n\n<tool_call>x") == 21


def test_reasoning_that_does_not_come_binds_nothing() -> None:
    for text in ("Well", "<thin ice", "<think"):
        guide = plain(reasoning=THINK)
        assert write(guide, PLAIN, text + "<tool_call>x") == len(text) + 11


def test_forced_replies_begin_behind_open_reasoning() -> None:
    for fields, reply in ((ANY, "<tool_call>"), (FORMAT, '{"answer": 1}')):
        guide = plain(reasoning=OPEN, **fields)
        assert not guide.accept(256)
        assert write(guide, PLAIN, "Hm. </th") == 8
        text = f"ink>\n\n{reply}"
        assert write(guide, PLAIN, text) == len(text)
        assert guide.allowed() is not None
    guide = plain(reasoning=OPEN, **FORMAT)
    assert guide.accept(PLAIN.id_of("</think>\n"))
    assert write(guide, PLAIN, '{"answer": 1}') == 13
    guide = plain(reasoning=OPEN, **FORMAT)
    assert write(guide, PLAIN, "</think>\n\n\n") == 10


def test_structured_output_may_begin_with_reasoning() -> None:
    vocab = PieceVocab(["<think>", "</think>"])
    maker = GuideMaker(vocab)
    guide = guided(maker, prompted({}, reasoning=THINK), **FORMAT)
    text = '<think>Hm.</think>{"answer": 1}'
    assert write(guide, vocab, text) == len(text)
    guide = guided(maker, prompted({}, reasoning=THINK), **FORMAT)
    assert write(guide, vocab, '{"answer": 1}') == 13
    guide = guided(maker, prompted(SMALL, reasoning=THINK), **ANY)
    assert write(guide, vocab, "<think>") == 0


@pytest.mark.parametrize("begun", ["", "</", "</think"])
@pytest.mark.parametrize("is_token", [False, True])
def test_a_used_up_budget_ends_reasoning(begun: str, is_token: bool) -> None:
    vocab = PieceVocab(["</think>"] if is_token else [])
    budget = 10 + len(begun)
    thinking = {"type": "enabled", "budget_tokens": budget}
    guide = guided(GuideMaker(vocab), prompted(SMALL, reasoning=OPEN), thinking=thinking, **ANY)
    assert write(guide, vocab, "0123456789" + begun) == budget
    forced = b""
    while not forced.endswith(b">"):
        [token] = tokens_in(guide.allowed(), vocab.n_tokens)
        assert not guide.accept(ord("x"))
        assert guide.accept(token)
        forced += vocab.piece(token)
    assert forced.decode() == ("</think>" if is_token else "</think>"[len(begun) :])
    assert write(guide, vocab, "\n\n<tool_call>\n") == 14


def test_a_budget_counts_from_the_start_mark() -> None:
    thinking = {"type": "enabled", "budget_tokens": 4}
    guide = plain(reasoning=THINK, thinking=thinking)
    assert write(guide, PLAIN, "<think>0123") == 11
    assert tokens_in(guide.allowed(), PLAIN.n_tokens) == [ord("<")]


def test_a_budget_needs_no_tools() -> None:
    thinking = {"type": "enabled", "budget_tokens": 0}
    guide = guided(PLAIN_MAKER, prompted({}, reasoning=OPEN), thinking=thinking)
    assert tokens_in(guide.allowed(), PLAIN.n_tokens) == [ord("<")]
    assert write(guide, PLAIN, "</think>Hello <tool_call>!") == 26


# --- odd schemas and names ------------------------------------------------------------------------


@each_dialect
@pytest.mark.parametrize("name", ODD_SCHEMAS)
def test_an_odd_schema_does_not_break_the_request(dialect: str, name: str) -> None:
    prompt = prompted({name: ODD_SCHEMAS[name], **SMALL}, dialect)
    source = random.Random(name)
    reply = draw(guided(MAKERS[dialect], prompt, **ANY), MARKED[dialect], source)
    if reply is not None:
        for called, arguments in calls_in(reply, prompt.dialect, prompt.schemas)[0]:
            assert isinstance(json.loads(arguments), dict)
            assert called != "find" or is_valid(arguments, SMALL["find"])


def test_an_odd_schema_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    maker = GuideMaker(PLAIN)
    with caplog.at_level(logging.WARNING):
        for more in ({}, SMALL):
            guided(maker, prompted({"unique": ODD_SCHEMAS["unique"], **more}))
    [record] = caplog.records
    assert "'unique'" in record.message
    assert "uniqueItems" not in record.message, "a reason may quote the client"


def test_a_name_that_can_not_be_written_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tools = {"a b<": SMALL["nothing"], 'say "ä"\n': SMALL["nothing"], **SMALL}
    maker = GuideMaker(PLAIN)
    text = '<tool_call>\n{"name": "say \\"ä'
    assert write(guided(maker, prompted(tools)), PLAIN, text) == len(text.encode())
    with caplog.at_level(logging.WARNING):
        guide = guided(maker, prompted(tools, "glm"))
    assert write(guide, PLAIN, "<tool_call>a") == 11
    assert sum("can't be called" in record.message for record in caplog.records) == 2
    only = {"a b<": SMALL["nothing"]}
    with pytest.raises(InvalidRequest, match="can't call any of the tools"):
        guided(maker, prompted(only, "glm"), **ANY)
    assert write(guided(maker, prompted(only, "glm")), PLAIN, "<tool_call>") == 10


def test_what_is_too_much_for_a_grammar_is_not_checked(caplog: pytest.LogCaptureFixture) -> None:
    words = {"type": "string", "enum": [f"word {n} of many" for n in range(60_000)]}
    large = {"type": "object", "properties": {"a": words, "b": words}, "required": ["a"]}
    with caplog.at_level(logging.WARNING):
        guide = guided(GuideMaker(PLAIN), prompted({"large": large}), **ANY)
    assert caplog.records
    text = '<tool_call>\n{"name": "large", "arguments": {'
    assert write(guide, PLAIN, text) == len(text)


@each_dialect
def test_many_choices_are_not_too_much(dialect: str) -> None:
    wide = {f"p{n}": {"type": "integer"} for n in range(700)}
    tools = {f"tool_{n}": SMALL["nothing"] for n in range(700)}
    tools["wide"] = {"type": "object", "properties": wide}
    prompt = prompted(tools, dialect)
    reply = draw(guided(MAKERS[dialect], prompt, **ANY), MARKED[dialect], random.Random(dialect))
    assert reply is None or calls_in(reply, prompt.dialect, prompt.schemas)[0]
    only = prompted({"wide": tools["wide"]}, dialect)
    reply = draw(guided(MAKERS[dialect], only, **ANY), MARKED[dialect], random.Random(dialect))
    assert reply is None or calls_in(reply, only.dialect, only.schemas)[0]


def test_grammars_are_kept() -> None:
    maker = GuideMaker(PLAIN)
    for _ in range(3):
        guided(maker, prompted(TOOLS))
    assert maker._triggers.cache_info().misses == 1
    guided(maker, prompted(SMALL))
    assert maker._triggers.cache_info().misses == 2


@pytest.mark.parametrize(
    ("dialect", "begun"),
    [
        ("qwen_xml", "<tool_call>\n<function=any>\n<parameter=WORD"),
        ("glm", "<tool_call>any<arg_key>WORD"),
        ("lfm2", "<|tool_call_start|>[any(WORD"),
        ("gemma", "<|tool_call>call:any{a:{WORD"),
    ],
)
def test_a_bare_key_ends(dialect: str, begun: str) -> None:
    """A reading would break where one goes on for ever."""
    guide = guided(PLAIN_MAKER, prompted({"any": {"type": "object"}}, dialect))
    text = begun.replace("WORD", "k" * 200)
    assert write(guide, PLAIN, text) == len(text) - 100


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_a_bare_number_ends(kind: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": kind}}, "required": ["n"]}
    guide = guided(PLAIN_MAKER, prompted({"count": schema}, "lfm2"))
    text = "<|tool_call_start|>[count(n=" + "9" * 200
    assert write(guide, PLAIN, text) == len(text) - 100
    assert write(guide, PLAIN, ")]<|tool_call_end|>") == 19

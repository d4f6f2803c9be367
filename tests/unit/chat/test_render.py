from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.normalise import Rules
from ratoon.chat.render import Renderer
from ratoon.errors import InvalidRequest
from tests.unit.chat.fakes import (
    CHATML,
    CHATML_TOOLS,
    STRICT,
    ByteVocab,
    renderer,
    request,
    shown,
    template,
    text,
    tool,
    tool_result,
    tool_use,
)

GOLDEN = Path(__file__).parent / "golden"
HEADER = "x-anthropic-billing-header: cc_version=2.1.332.94d; cc_entrypoint=sdk-cli;"
EPHEMERAL = {"type": "ephemeral"}
END = "<|im_end|>\n"
REPLY = "<|im_start|>assistant\n"

ROUND = [
    ("user", "What is in a.py and b.py?"),
    (
        "assistant",
        [
            {"type": "thinking", "thinking": "Two files.", "signature": "s"},
            text("Reading both."),
            tool_use("toolu_1", "read", path="a.py"),
            tool_use("toolu_2", "read", path="b.py", limit=5),
        ],
    ),
    (
        "user",
        [
            tool_result("toolu_2", [text("no such file")], is_error=True),
            tool_result("toolu_1", "print('<|im_end|>')"),
            text("Go on."),
        ],
    ),
]
LATE = [
    ("user", [text("<system-reminder>rules</system-reminder>"), text("Do the task.")]),
    ("system", "Today is Monday."),
    ("assistant", "Working."),
    ("user", "And?"),
    ("system", [text("<total_tokens>77 tokens left</total_tokens>")]),
]
SYSTEM = [text(HEADER), text("You are an agent."), text("Be brief.", cache_control=EPHEMERAL)]
CASES: dict[str, tuple[str, list[tuple[str, Any]], dict[str, Any], bool]] = {
    "plain": (CHATML_TOOLS, [("user", "Hi"), ("assistant", "Hello."), ("user", "Bye")], {}, True),
    "billing": (CHATML_TOOLS, [("user", "Hi")], {"system": SYSTEM}, True),
    "tools": (CHATML_TOOLS, ROUND, {"system": "Be brief.", "tools": [tool("read")]}, True),
    "tools_hermes": (CHATML, ROUND, {"system": "Be brief.", "tools": [tool("read")]}, True),
    "late_hoisted": (CHATML_TOOLS, LATE, {"system": SYSTEM}, True),
    "late_in_place": (CHATML_TOOLS, LATE, {"system": SYSTEM}, False),
    "late_strict": (STRICT, LATE, {"system": SYSTEM}, False),
    "tools_strict": (STRICT, ROUND, {"tools": [tool("read")]}, True),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    source, messages, fields, hoist = CASES[name]
    prompt = renderer(source).render(request(*messages, **fields), hoist=hoist)
    assert shown(prompt) == (GOLDEN / f"{name}.txt").read_text()


def render_text(*messages: tuple[str, Any], source: str = CHATML_TOOLS, **fields: Any) -> str:
    return shown(renderer(source).render(request(*messages, **fields)))


def pieces_at_boundaries(source: str, *messages: tuple[str, Any], **fields: Any) -> list[str]:
    """The prompt, cut where states are saved."""
    prompt = renderer(source).render(request(*messages, **fields))
    edges = [0, *prompt.boundaries, len(prompt.tokens)]
    vocab = ByteVocab()
    return [vocab.text(prompt.tokens[a:b]) for a, b in zip(edges, edges[1:], strict=False)]


def test_boundaries_at_head_marks_and_trailing_turn() -> None:
    found = pieces_at_boundaries(
        CHATML,
        ("user", "one"),
        ("system", "late"),
        ("assistant", [text("two", cache_control=EPHEMERAL)]),
        ("user", "three"),
        ("assistant", "four"),
        ("user", [text("five", cache_control=EPHEMERAL)]),
        system=[text("a", cache_control=EPHEMERAL), text("b")],
    )
    assert found == [
        "<|im_start|>system\na",
        f"\n\nb{END}",
        f"<|im_start|>system\nlate{END}",
        f"<|im_start|>user\none{END}{REPLY}two{END}",
        f"<|im_start|>user\nthree{END}{REPLY}four{END}",
        f"<|im_start|>user\nfive{END}",
        REPLY,
    ]


def test_boundary_behind_a_marked_tool() -> None:
    tools = [tool("read", cache_control=EPHEMERAL), tool("write")]
    for source in (CHATML_TOOLS, CHATML):
        first, second, *_ = pieces_at_boundaries(source, ("user", "x"), tools=tools)
        assert '"read"' in first
        assert '"write"' not in first
        assert second.endswith(END)


def test_boundary_of_the_head_where_a_template_needs_a_user() -> None:
    head, rest = pieces_at_boundaries(STRICT, ("user", "task"), system="rules")
    assert head == "<s><|im_start|>user\nrules\n\n"
    assert rest.startswith("task")


def test_marks_are_bounded() -> None:
    blocks = [text(f"{n}", cache_control=EPHEMERAL) for n in range(1000)]
    prompt = renderer().render(request(("user", "x"), system=blocks))
    assert len(prompt.boundaries) <= 10


def test_form_of_content_is_not_prompt_text() -> None:
    as_text = render_text(("user", "x"), system="s")
    marked = text("x", cache_control=EPHEMERAL)
    assert render_text(("user", [marked, text("")]), system=[text("s")]) == as_text


def test_client_ids_are_not_prompt_text() -> None:
    print_ids = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}{% endfor %}"
    )
    prompts = [
        render_text(
            ("user", "x"),
            ("assistant", [tool_use(id, "read", path="a")]),
            ("user", [tool_result(id, "r")]),
            source=source,
            tools=[tool("read")],
        )
        for id in ("toolu_1", "other")
        for source in (CHATML_TOOLS, CHATML_TOOLS + print_ids)
    ]
    assert prompts[0] == prompts[2]
    assert prompts[1] == prompts[3]


def test_equal_tools_give_equal_text() -> None:
    schema = {"type": "object", "properties": {"b": {"a": 1, "c": [{"z": 1, "y": 2}]}}}
    turned = {"properties": {"b": {"c": [{"y": 2, "z": 1}], "a": 1}}, "type": "object"}
    one = render_text(("user", "x"), tools=[tool("t", input_schema=schema)])
    assert one == render_text(("user", "x"), tools=[tool("t", input_schema=turned)])
    assert one.index('"name"') < one.index('"description"') < one.index('"parameters"')


def test_deferred_tools_stay_out_of_the_head() -> None:
    tools = [tool("read"), tool("later", defer_loading=True)]
    assert "later" not in render_text(("user", "x"), tools=tools)
    alone = renderer().render(request(("user", "x"), tools=tools[1:]))
    assert not alone.parses_tools


def test_tool_choice_none_keeps_the_prompt() -> None:
    tools = [tool("read")]
    auto = renderer().render(request(("user", "x"), tools=tools))
    none = renderer().render(request(("user", "x"), tools=tools, tool_choice={"type": "none"}))
    assert auto.tokens == none.tokens
    assert auto.parses_tools
    assert not none.parses_tools


def test_a_reply_is_read_in_the_dialect_of_the_template() -> None:
    tools = [tool("read"), tool("later", defer_loading=True)]
    prompt = renderer(CHATML_TOOLS).render(request(("user", "x"), tools=tools))
    assert prompt.dialect == DIALECTS["hermes"]
    assert list(prompt.schemas) == ["read"]


def test_the_form_that_the_prompt_teaches_is_understood_too() -> None:
    taught = DIALECTS["hermes"].forms
    for chosen in (None, DIALECTS["kimi"]):
        source = CHATML + "{# <|tool_calls_section_begin|> #}"
        given = Renderer(template(source), ByteVocab(), Rules(), chosen)
        forms = given.render(request(("user", "x"), tools=[tool("read")])).dialect.forms
        assert forms == taught + DIALECTS["kimi"].forms


def test_the_form_that_the_template_shows_comes_first() -> None:
    source = CHATML_TOOLS + "{# <tool_call> #}"
    given = Renderer(template(source), ByteVocab(), Rules(), DIALECTS["granite"])
    forms = given.render(request(("user", "x"), tools=[tool("read")])).dialect.forms
    assert [form.start for form in forms] == ["<tool_call>", "<|tool_call|>"]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"type": "tool", "name": "x"}, "tool_choice.name: Tool 'x' not found in provided tools"),
        ({"type": "tool"}, "tool_choice.name: Field required"),
    ],
)
def test_a_choice_that_can_not_be_is_refused(choice: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        renderer().render(request(("user", "x"), tools=[tool("read")], tool_choice=choice))


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_a_forced_call_needs_tools(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="may only be specified while providing tools"):
        renderer().render(request(("user", "x"), tool_choice={"type": kind, "name": "x"}))


def test_final_assistant_text_is_continued() -> None:
    for source in (CHATML_TOOLS, CHATML, STRICT):
        prompt = render_text(("user", "x"), ("assistant", "Once upon "), source=source)
        assert prompt.endswith(f"{REPLY}Once upon ")
    assert render_text(("user", "x"), ("assistant", "")).endswith(f"{END}{REPLY}")


def test_text_document() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "body"}
    prompt = render_text(("user", [{"type": "document", "source": source, "title": "Title"}]))
    assert "Title\n\nbody" in prompt


def test_error_is_marked_once() -> None:
    results = [tool_result("t", content, is_error=True) for content in ("Error: a", "b", None)]
    call = ("assistant", [tool_use("t", "read")])
    prompt = render_text(("user", "x"), call, ("user", results), source=CHATML)
    assert "\nError: a\n" in prompt
    assert "\nError: b\n" in prompt


def test_result_follows_the_form_of_its_call() -> None:
    """A template that takes one call at a time gets each with its result; early ones are text."""
    single = CHATML_TOOLS.replace(
        "for call in message.tool_calls or []", "for call in (message.tool_calls or [])[:1]"
    ).replace("'\\n<tool_response>", "'\\n<native>")
    prompt = render_text(*ROUND, source=single, tools=[tool("read")])
    first, second = prompt.split("<native>")[1:]
    assert "b.py" in first
    assert "b.py" not in second
    early = [("user", [tool_result("t", "r")]), ("assistant", [tool_use("t", "read")])]
    prompt = render_text(*early, source=single)
    assert "user\n<tool_response>\nr\n</tool_response>" in prompt


def test_text_length_is_that_of_the_prompt_text() -> None:
    prompt = renderer().render(request(("user", "é <|im_end|>")))
    assert prompt.text_len == len(shown(prompt))


def test_fired_rules_and_late_run_are_reported() -> None:
    prompt = renderer().render(request(*LATE, system=SYSTEM))
    assert prompt.fired == {"billing": 1, "hoist": 1, "total_tokens": 1}
    assert prompt.has_late_run
    off = renderer(rules=Rules(hoist_system=False)).render(request(*LATE, system=SYSTEM))
    kept = renderer().render(request(*LATE, system=SYSTEM), hoist=False)
    assert off.tokens == kept.tokens
    assert kept.has_late_run
    assert kept.fired == {"billing": 1, "total_tokens": 1}


@pytest.mark.parametrize(
    ("messages", "fields", "match"),
    [
        ([], {}, "messages: at least one message is required"),
        ([("system", "x")], {}, "at least one user message"),
        ([("user", "")], {}, "at least one user message"),
        ([("assistant", "x"), ("user", "x")], {}, r"messages\.0: the first message"),
        ([("system", "s"), ("assistant", "x")], {}, r"messages\.1: the first message"),
        ([("user", "x")], {"tools": [{"name": "w", "type": "web_search_20250305"}]}, r"tools\.0"),
    ],
)
def test_client_faults(messages: list[Any], fields: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match):
        renderer().render(request(*messages, **fields))


def test_client_noncharacters_survive() -> None:
    body = "a\ufdd0<|im_end|>\ufdd1b"
    assert body in render_text(("user", body))


words = st.sampled_from(["a", "b c", "<|im_end|>", "<|im_start|>system", "<tool_call>", "é\n"])
user_turns = st.tuples(st.just("user"), words)
rounds = st.lists(
    st.tuples(st.just("assistant"), words) | user_turns | st.tuples(st.just("system"), words),
    max_size=6,
)


@settings(deadline=None)
@given(words, rounds, rounds, st.sampled_from([CHATML, CHATML_TOOLS]))
def test_more_messages_extend_the_prompt(
    first: str, history: list[tuple[str, str]], more: list[tuple[str, str]], source: str
) -> None:
    made = renderer(source, Rules(hoist_system=False))
    before = [("user", first), *history, ("user", "end")]
    short = made.render(request(*before, system="s")).tokens
    long = made.render(request(*before, *more, ("user", "next"), system="s")).tokens
    header = len(ByteVocab().tokenize("assistant\n")) + 1
    assert long[: len(short) - header] == short[:-header]


@settings(deadline=None)
@given(words, rounds, st.sampled_from([CHATML, CHATML_TOOLS, STRICT]))
def test_only_the_template_writes_control_tokens(
    first: str, history: list[tuple[str, str]], source: str
) -> None:
    made = renderer(source)
    harmless = str.maketrans("<|>", "(_)")
    tame = [(role, body.translate(harmless)) for role, body in history]
    counts = [
        [token for token in made.render(request(*messages)).tokens if 256 <= token < 260]
        for messages in (
            [("user", first), *history, ("user", "end")],
            [("user", first.translate(harmless)), *tame, ("user", "end")],
        )
    ]
    assert counts[0] == counts[1]

"""Reasoning: how templates switch it, and how a reply is split."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.chat.parser import Delta, ReplyParser, TextDelta, ThinkingDelta, ToolStart
from ratoon.chat.template import ChatTemplate
from ratoon.chat.thinking import Reasoning, think_modes
from tests.unit.chat.fakes import CHATML, renderer, request, shown

HISTORY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}"
    "<|im_end|>\n{% endfor %}"
)
HEADER = "<|im_start|>assistant\n"


def template(generation: str) -> str:
    return f"{HISTORY}{{% if add_generation_prompt %}}{generation}{{% endif %}}{{{{ '' }}}}"


# Shapes of real templates: closed when off, opened unless off, opened always, never written.
CLOSES = template(
    f"{HEADER}{{% if enable_thinking is false %}}<think>\n\n</think>\n\n{{% endif %}}"
)
OPENS = template(
    f"{HEADER}<think>{{% if enable_thinking is false %}}</think>{{% endif %}}{{{{ '\\n' }}}}"
)
ALWAYS = template(f"{HEADER}<think>\n")
UNSAID = template(f"{HEADER}{{# <think> #}}")
IN_HEAD = "{% if thinking %}Reason within <think> and </think>.{% endif %}" + template(HEADER)


@pytest.mark.parametrize(
    ("source", "on", "off", "is_open"),
    [
        (CLOSES, HEADER, f"{HEADER}<think>\n\n</think>\n\n", False),
        (OPENS, f"{HEADER}<think>\n", f"{HEADER}<think></think>\n", True),
        (ALWAYS, f"{HEADER}<think>\n", f"{HEADER}<think>\n\n</think>\n\n", True),
        (UNSAID, HEADER, f"{HEADER}<think>\n\n</think>\n\n", False),
        (IN_HEAD, HEADER, HEADER, False),
    ],
)
def test_the_prompt_says_whether_to_reason(source: str, on: str, off: str, is_open: bool) -> None:
    asked = request(("user", "x"))
    thinking = renderer(source).render(asked, thinks=True)
    plain = renderer(source).render(asked, thinks=False)
    assert shown(thinking).endswith(f"x<|im_end|>\n{on}")
    assert shown(plain).endswith(f"x<|im_end|>\n{off}")
    assert thinking.reasoning == Reasoning(is_open=is_open)
    assert plain.reasoning == Reasoning()


def test_a_model_without_reasoning_has_no_switch() -> None:
    modes = think_modes(ChatTemplate(CHATML, "", ""))
    assert modes[True] == modes[False]
    assert modes[True].reasoning is None


def test_a_continued_answer_has_no_reasoning() -> None:
    prompt = renderer(ALWAYS).render(request(("user", "x"), ("assistant", "so")), thinks=True)
    assert prompt.reasoning is None
    assert shown(prompt).endswith("so")


@pytest.mark.parametrize("source", [CLOSES, OPENS, ALWAYS, UNSAID])
def test_a_reply_keeps_its_header_in_history(source: str) -> None:
    """Without reasoning, the next prompt begins with this one, whoever wrote the reply."""
    first = shown(renderer(source).render(request(("user", "x"))))
    turns = (("user", "x"), ("assistant", "y <|im_start|>assistant\n z"), ("user", "more"))
    second = shown(renderer(source).render(request(*turns)))
    assert second.startswith(f"{first}y <|im_start|>assistant\n z<|im_end|>\n")


@pytest.mark.parametrize("source", [CLOSES, OPENS])
def test_reasoning_in_history_is_left_out(source: str) -> None:
    thought = {"type": "thinking", "thinking": "secret", "signature": "s"}
    turns = (("user", "x"), ("assistant", [thought, {"type": "text", "text": "y"}]), ("user", "z"))
    for thinks in (True, False):
        text = shown(renderer(source).render(request(*turns), thinks=thinks))
        assert "secret" not in text
        assert text.count("<think>") == text.count("</think>") + thinks * (source == OPENS)


def test_the_template_s_own_empty_block_is_kept() -> None:
    writes = HISTORY.replace(
        "{{ m.content", "{% if m.role == 'assistant' %}</think>{% endif %}{{ m.content"
    )
    source = CLOSES.replace(HISTORY, writes)
    turns = (("user", "x"), ("assistant", "y"), ("user", "z"))
    assert "assistant\n</think>y<" in shown(renderer(source).render(request(*turns)))


OPEN = Reasoning(is_open=True)
CLOSED = Reasoning()


@pytest.mark.parametrize(
    ("reasoning", "reply", "thought", "text"),
    [
        (OPEN, "\nhm, so\n</think>\n\nYes.", "hm, so", "Yes."),
        (OPEN, "</think>Yes.", "", "Yes."),
        (OPEN, " \n</think>\n\n", "", ""),
        (OPEN, "a\n\n b  </think> Yes\n", "a\n\n b", "Yes\n"),
        (OPEN, "never ends\n", "never ends\n", ""),
        (OPEN, "ends in the mark</thi", "ends in the mark</thi", ""),
        (OPEN, "a</think>b</think>c", "a", "b</think>c"),
        (CLOSED, "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        (CLOSED, "\n <think>hm</think>Yes.", "hm", "Yes."),
        (CLOSED, "Yes <think>no</think>", "", "Yes <think>no</think>"),
        (CLOSED, "<thinking> is fun", "", "<thinking> is fun"),
        (CLOSED, "  <thi", "", "  <thi"),
        (CLOSED, "", "", ""),
        (Reasoning("[THINK]", "[/THINK]"), "[THINK]é[/THINK]à", "é", "à"),
    ],
)
@given(cuts=st.sets(st.integers(0, 60)))
def test_a_reply_is_split_wherever_it_is_cut(
    reasoning: Reasoning, reply: str, thought: str, text: str, cuts: set[int]
) -> None:
    deltas = parsed(reply, reasoning, cuts)
    assert "".join(d.text for d in deltas if isinstance(d, ThinkingDelta)) == thought
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == text


def test_no_call_and_no_stop_sequence_counts_inside_reasoning() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    deltas = parsed(f"{call} STOP</think>Go {call}", OPEN, {3}, stop="STOP")
    assert deltas[0] == ThinkingDelta(call[:3])
    assert [d.name for d in deltas if isinstance(d, ToolStart)] == ["f"]
    after = parsed("a</think>b STOP c", OPEN, set(), stop="STOP")
    assert after == [ThinkingDelta("a"), TextDelta("b"), TextDelta(" ")]


def parsed(reply: str, reasoning: Reasoning, cuts: set[int], stop: str = "") -> list[Delta]:
    parser = ReplyParser([stop] if stop else [], True, lambda: "id", reasoning=reasoning)
    data = reply.encode()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    deltas: list[Delta] = []
    for start, end in zip(edges, edges[1:], strict=False):
        deltas += parser.feed(data[start:end])
    return deltas + parser.finish()

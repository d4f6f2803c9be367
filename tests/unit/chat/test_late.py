"""Late system messages keep their place, and their authority where a template knows any."""

from __future__ import annotations

import pytest

from ratoon.chat.late import LateForm, Wrapper, find_late_form
from ratoon.chat.template import ChatTemplate
from tests.unit.chat.fakes import renderer, request, shown, tool

LATE = (
    ("user", "one"),
    ("assistant", "two"),
    ("user", "three"),
    ("system", "rule <|im_end|>"),
    ("user", "four"),
)


def chatml(check: str = "") -> str:
    return (
        f"{{% for m in messages %}}{check}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}"
        "<|im_end|>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
    )


def alternating(user: str, assistant: str, system: str = "") -> str:
    """Roles must take turns; a system message may come first."""
    return (
        "<s>{% set n = namespace(at=0) %}{% for m in messages %}"
        "{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('late') }}{% endif %}"
        f"{system}{{% else %}}"
        "{% if (m.role == 'user') != (n.at % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
        "{% set n.at = n.at + 1 %}"
        f"{{% if m.role == 'user' %}}{user}{{% else %}}{assistant}{{% endif %}}"
        "{% endif %}{% endfor %}"
    )


PLAIN_CHATML = chatml()
STRICT_CHATML = chatml(
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
)
DROPPING_CHATML = chatml("{% if m.role == 'system' and not loop.first %}{% continue %}{% endif %}")
LLAMA_3 = (
    "<s>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = alternating(
    "[INST]{{ m.content }}[/INST]",
    "{{ m.content }}</s>",
    "[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]",
)
OLD_MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set head = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set head = '' %}{% endif %}"
) + alternating(
    "[INST] {% if loop.first %}{{ head }}{% endif %}{{ m.content }}[/INST]",
    " {{ m.content }}</s>",
)
GEMMA = alternating(
    "<start_of_turn>user\n{{ m.content | trim }}<end_of_turn>{{ '\n' }}",
    "<start_of_turn>model\n{{ m.content | trim }}<end_of_turn>{{ '\n' }}",
    "{{ raise_exception('no systems') }}",
)
HARMONY = (
    "<|start|>system<|message|>General.<|end|>"
    "{% for m in messages %}{% if m.role == 'system' %}{% if loop.first %}"
    "<|start|>developer<|message|># Instructions\n\n{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
NAMED_ENDS = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('late') }}{% endif %}"
    "<|{{ m.role }}_start|>{{ m.content }}<|{{ m.role }}_end|>{% endfor %}"
)
DEEPSEEK = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'user' %}<User>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<Assistant>{{ m.content }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<Assistant>{% endif %}"
)
REMINDER = "<system-reminder>\nrule <|im_end|>\n</system-reminder>"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (PLAIN_CHATML, "three<|im_end|>\n<|im_start|>system\nrule <|im_end|><|im_end|>\n"),
        (STRICT_CHATML, "three<|im_end|>\n<|im_start|>system\nrule <|im_end|><|im_end|>\n"),
        (DROPPING_CHATML, "three<|im_end|>\n<|im_start|>system\nrule <|im_end|><|im_end|>\n"),
        (
            LLAMA_3,
            "three<|eot_id|><|start_header_id|>system<|end_header_id|>\n\n"
            "rule <|im_end|><|eot_id|>",
        ),
        (
            MISTRAL,
            "three[/INST][SYSTEM_PROMPT]rule <|im_end|>[/SYSTEM_PROMPT][INST]four[/INST]",
        ),
        (HARMONY, "three<|end|><|start|>developer<|message|>rule <|im_end|><|end|><|start|>user"),
        (
            NAMED_ENDS,
            "three<|user_end|><|system_start|>rule <|im_end|><|system_end|><|user_start|>",
        ),
        (OLD_MISTRAL, f"[INST] three\n\n{REMINDER}\n\nfour[/INST]"),
        (GEMMA, f"<start_of_turn>user\nthree\n\n{REMINDER}\n\nfour<end_of_turn>\n"),
        (DEEPSEEK, f"<User>three<User>{REMINDER}<User>four"),
    ],
)
def test_a_late_system_message_stays_in_place(source: str, expected: str) -> None:
    assert expected in shown(renderer(source).render(request(*LATE)))


@pytest.mark.parametrize("source", [STRICT_CHATML, MISTRAL, HARMONY, GEMMA, OLD_MISTRAL])
@pytest.mark.parametrize("reply", [(), (("assistant", "done"), ("user", "five"))])
def test_a_late_system_message_extends_the_prompt(
    source: str, reply: tuple[tuple[str, str], ...]
) -> None:
    """A message at the end never changes what was said before it."""
    for n in range(3, len(LATE)):
        turns = (*LATE[:n], *reply)
        whole = shown(renderer(source).render(request(*turns, ("system", "more"))))
        before = shown(renderer(source).render(request(*LATE[:n])))
        kept = before[: before.rindex(LATE[n - 1][1]) + len(LATE[n - 1][1])]
        assert whole.startswith(kept)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<u>#s#</u>", "<s>s</s>"),
        ("x<u>a\n\n#s#</u>y", "x<u>a</u><s>s</s>y"),
        ("x<u>#s#\n\nb</u>y", "x<s>s</s><u>b</u>y"),
        ("<u>a\n\n#s#\n\n#t#\n\nb</u>", "<u>a</u><s>s</s><s>t</s><u>b</u>"),
        ("<u>#s#</u><u>#t#</u>", "<s>s</s><s>t</s>"),
        ("<tool>a\n\n#s#</tool>", "<tool>a\n\n<system-reminder>\ns\n</system-reminder></tool>"),
        ("no marks", "no marks"),
    ],
)
def test_marked_text_is_moved_out_of_its_message(text: str, expected: str) -> None:
    form = LateForm(Wrapper("<u>", "</u>"), Wrapper("<s>", "</s>"))
    assert form.rewrite(text, "#") == expected


@pytest.mark.parametrize("source", [PLAIN_CHATML, LLAMA_3, GEMMA, OLD_MISTRAL, DEEPSEEK])
def test_no_form_is_made_up(source: str) -> None:
    assert find_late_form(ChatTemplate(source, "<s>", "</s>")) is None


def test_a_result_may_precede_it() -> None:
    use = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "kappa"}
    turns = (("user", "x"), ("assistant", [use]), ("user", [result]), ("system", "rule"))
    asked = request(*turns, tools=[tool("read")])
    text = shown(renderer(STRICT_CHATML).render(asked))
    assert "<|im_start|>system\nrule<|im_end|>\n<|im_start|>assistant" in text
    text = shown(renderer(MISTRAL).render(asked))
    assert "kappa" in text.split("[SYSTEM_PROMPT]rule[/SYSTEM_PROMPT]")[0]

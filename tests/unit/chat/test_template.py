from __future__ import annotations

from datetime import datetime

import pytest

from ratoon.chat.template import ChatTemplate
from ratoon.errors import InvalidRequest, ModelError
from tests.unit.chat.fakes import CHATML, CHATML_TOOLS, STRICT, template

USER = [{"role": "user", "content": "hi"}]


def test_plain_chatml_takes_any_role_but_no_tools() -> None:
    chatml = template(CHATML)
    assert chatml.takes_system
    assert chatml.takes_several_systems
    assert chatml.takes_late_system
    assert chatml.takes_tool_role
    assert not chatml.takes_tools
    assert not chatml.renders_tool_calls
    assert not chatml.wants_alternation


def test_chatml_with_tools_takes_everything() -> None:
    chatml = template(CHATML_TOOLS)
    assert chatml.takes_tools
    assert chatml.takes_tool_role
    assert chatml.takes_late_system
    assert chatml.renders_tool_calls
    assert chatml.takes_parallel_calls
    assert not chatml.wants_string_arguments


def test_strict_template_is_seen_as_strict() -> None:
    strict = template(STRICT)
    assert strict.takes_system
    assert strict.wants_alternation
    assert not strict.takes_several_systems
    assert not strict.takes_late_system
    assert not strict.takes_tool_role
    assert not strict.renders_head_alone


def test_late_system_rendered_as_user_has_no_authority() -> None:
    source = "{% for m in messages %}[{{ 'A' if m.role == 'assistant' else 'U' }}]{{ m.content }}"
    assert not template(source + "{% endfor %}").takes_late_system


def test_arguments_as_text_where_the_template_prints_them_as_they_are() -> None:
    source = (
        "{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert template(source).wants_string_arguments
    assert template(source).renders_tool_calls


def test_content_as_parts_where_the_template_wants_parts() -> None:
    source = "{% for m in messages %}{% for p in m.content %}{{ p.text }};{% endfor %}{% endfor %}"
    assert template(source).render(USER, None, False) == "hi;"


def test_absent_tools_as_an_empty_list_where_the_template_iterates_them() -> None:
    source = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + CHATML
    made = template(source)
    assert made.takes_tools
    assert made.render(USER, None, False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_tojson_is_not_html() -> None:
    source = CHATML + "{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=true) }}"
    assert template(source).render(USER, None, False).endswith('{"a": 1, "b": "<é>"}')


def test_generation_tags_loop_controls_and_time() -> None:
    source = (
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% if loop.index == 9 %}{% break %}{% endif %}{% endfor %}{{ strftime_now('%Y') }}"
    )
    made = ChatTemplate(source, "", "", now=lambda: datetime(2031, 1, 1))
    assert made.render(USER, None, False) == "hi2031"


def test_bad_source_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="not valid"):
        template("{% for %}")
    with pytest.raises(ModelError, match="user message"):
        template("{{ raise_exception('no') }}")


def test_refusal_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        template(STRICT).render(USER + USER, None, True)


def test_sandbox_refuses_internals() -> None:
    source = CHATML + "{% if messages | length > 1 %}{{ ''.__class__.__mro__ }}{% endif %}"
    with pytest.raises(InvalidRequest):
        template(source).render([*USER, {"role": "assistant", "content": "x"}], None, True)

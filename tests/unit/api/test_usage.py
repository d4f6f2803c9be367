"""Usage: the three figures always add up to the prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon import wire
from ratoon.api.usage import has_cache_marks, usage_of


@given(st.integers(1, 500), st.data(), st.lists(st.integers(0, 600)), st.booleans())
def test_the_sum_is_the_prompt(
    n_prompt: int, data: st.DataObject, boundaries: list[int], has_marks: bool
) -> None:
    n_cached = data.draw(st.integers(0, n_prompt))
    usage = usage_of(n_prompt, n_cached, boundaries, has_marks)
    figures = (
        usage.input_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )
    assert sum(figures) == n_prompt
    assert min(figures) >= 0
    assert usage.cache_read_input_tokens == n_cached
    assert has_marks or usage.cache_creation_input_tokens == 0


@pytest.mark.parametrize(
    ("n_cached", "boundaries", "has_marks", "expected"),
    [
        (0, (40, 80), True, (20, 80, 0)),
        (50, (40, 80), True, (20, 30, 50)),
        (90, (40, 80), True, (10, 0, 90)),
        (50, (40, 80), False, (50, 0, 50)),
        (50, (), True, (50, 0, 50)),
        (50, (101,), True, (50, 0, 50)),
    ],
)
def test_examples(
    n_cached: int, boundaries: tuple[int, ...], has_marks: bool, expected: tuple[int, int, int]
) -> None:
    usage = usage_of(100, n_cached, boundaries, has_marks)
    assert expected == (
        usage.input_tokens,
        usage.cache_creation_input_tokens,
        usage.cache_read_input_tokens,
    )


MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TEXT = {"type": "text", "text": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "t"}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({}, False),
        (MARK, True),
        ({"system": "x"}, False),
        ({"system": [TEXT]}, False),
        ({"system": [TEXT | MARK]}, True),
        ({"tools": [{"name": "f"}]}, False),
        ({"tools": [{"name": "f"} | MARK]}, True),
        ({"messages": [{"role": "user", "content": [TEXT | MARK]}]}, True),
        ({"messages": [{"role": "user", "content": [RESULT | MARK]}]}, True),
        ({"messages": [{"role": "user", "content": [RESULT | {"content": [TEXT | MARK]}]}]}, True),
        ({"messages": [{"role": "user", "content": [RESULT | {"content": "x"}]}]}, False),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "thinking", "thinking": ""}]}
                ]
            },
            False,
        ),
    ],
)
def test_marks_are_found_everywhere(part: dict[str, object], expected: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | part
    assert has_cache_marks(wire.CountTokensRequest.model_validate(body)) is expected

"""Whatever JSON comes in, the answer is a request or an ``InvalidRequest`` with a clean path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon import wire
from ratoon.api.body import parse_body
from ratoon.errors import InvalidRequest

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
block_types = st.sampled_from(
    ["text", "thinking", "tool_use", "tool_result", "image", "document", "other"]
)
keys = ["text", "thinking", "id", "name", "input", "tool_use_id", "content", "source", "is_error"]
wild_blocks = st.builds(
    lambda kind, rest: {"type": kind, **rest},
    block_types,
    st.dictionaries(st.sampled_from([*keys, "cache_control"]), values, max_size=4),
)
texts = st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=5))
objects = st.dictionaries(st.text(max_size=3), values, max_size=3)
calls = st.builds(
    lambda tool_id, name, given: {"type": "tool_use", "id": tool_id, "name": name, "input": given},
    st.text(max_size=2),
    st.text(max_size=3),
    objects,
)
results = st.builds(
    lambda tool_id, content: {"type": "tool_result", "tool_use_id": tool_id, "content": content},
    st.text(max_size=2),
    st.text(max_size=3) | st.lists(texts, max_size=2),
)
contents = st.text(max_size=5) | st.lists(texts | calls | results, max_size=3)
messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "user", "assistant", "system"]),
    contents,
)
wild_messages = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "bot"]),
    values | st.lists(wild_blocks | values, max_size=3),
)
fields = ["system", "tools", "tool_choice", "stop_sequences", "temperature", "top_p", "top_k"]
bodies = st.builds(
    lambda needed, more: needed | more,
    st.fixed_dictionaries(
        {
            "model": st.just("m"),
            "max_tokens": st.just(5),
            "messages": st.lists(messages, max_size=3),
        }
    ),
    st.dictionaries(st.sampled_from([*fields, "max_tokens", "stream", "thinking"]), values),
)


wild_bodies = st.builds(
    lambda body, messages: body | {"messages": messages}, bodies, st.lists(wild_messages)
)


@given(bodies | wild_bodies | values)
def test_any_json(body: Any) -> None:
    raw = json.dumps(body).encode()
    for kind in (wire.MessagesRequest, wire.CountTokensRequest):
        try:
            request = parse_body(kind, raw)
        except InvalidRequest as error:
            refusal = str(error)
        else:
            assert request.messages
            continue
        assert refusal
        assert "list[" not in refusal.partition(": ")[0]


@given(st.binary(max_size=40))
def test_any_bytes(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_body(wire.MessagesRequest, raw)


def test_numbers_out_of_any_range() -> None:
    raw = b'{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":"x"}]}' % 10**40
    assert parse_body(wire.MessagesRequest, raw).max_tokens == 10**40
    with pytest.raises(InvalidRequest):
        parse_body(wire.MessagesRequest, raw.replace(b'"model"', b'"temperature":1e999,"model"'))

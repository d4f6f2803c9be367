from __future__ import annotations

import json
import sys
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.chat.parser import Delta, ReplyParser, TextDelta, ToolEnd, ToolInput, ToolStart
from tests.unit.chat.fakes import joined

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
READ = (ToolStart("t1", "read"), ToolInput('{"path": "a.py"}'), ToolEnd())


def parse(
    *pieces: bytes | str, stop: tuple[str, ...] = (), tools: bool = True
) -> tuple[Delta, ...]:
    """The deltas, neighbours of one kind joined."""
    ids = count(1)
    parser = ReplyParser(stop, tools, lambda: f"t{next(ids)}")
    data = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
    return tuple(joined([d for piece in data for d in parser.feed(piece)] + parser.finish()))


def test_text_is_kept_exactly() -> None:
    assert parse("  a <b>\n\n c \n") == (TextDelta("  a <b>\n\n c \n"),)
    assert parse("") == ()


def test_text_goes_out_at_once() -> None:
    parser = ReplyParser((), True, str)
    assert parser.feed(b"hello <to") == [TextDelta("hello")]
    assert parser.feed(b"ols> ") == [TextDelta(" <tools>")]
    assert parser.finish() == [TextDelta(" ")]


def test_call_between_texts_drops_the_blanks_around_it() -> None:
    assert parse(f"Reading.\n\n{CALL}\n\nDone. ") == (
        TextDelta("Reading."),
        *READ,
        TextDelta("Done. "),
    )
    assert parse(f"{CALL}\n") == READ


def test_a_call_ends_with_its_markup() -> None:
    parser = ReplyParser((), True, lambda: "t1")
    assert parser.feed(CALL.removesuffix("</tool_call>").encode()) == list(READ[:2])
    assert parser.feed(b"</tool_call") == []
    assert parser.feed(b">") == [ToolEnd()]


def test_parallel_calls() -> None:
    second = (ToolStart("t2", "read"), *READ[1:])
    assert parse(f"{CALL}\n{CALL}") == (*READ, *second)


def test_calls_are_text_where_none_are_expected() -> None:
    assert parse(CALL, tools=False) == (TextDelta(CALL),)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f"}', "{}"),
        ('{"arguments": {"b": 1, "a": 5000.0}, "name": "f"}', '{"b": 1, "a": 5000.0}'),
        ('{"name": "f", "parameters": {"a": "\\u00e9"}}', '{"a": "é"}'),
        ('{"name": "f", "arguments": {"a": "line\nline"}}', '{"a": "line\\nline"}'),
        ('{"name": "f", "arguments": {"a": "\\ud800"}}', '{"a": "\ufffd"}'),
        ('{"name": "f", "arguments": {"a": "</tool_call>"}}', '{"a": "</tool_call>"}'),
        ('{"name": "f", "arguments": {"a": "\\"</tool_call>"}}', '{"a": "\\"</tool_call>"}'),
    ],
)
def test_forms_of_a_call(body: str, arguments: str) -> None:
    expected = (ToolStart("t1", "f"), ToolInput(arguments), ToolEnd())
    assert parse(f"<tool_call>{body}</tool_call>") == expected


@pytest.mark.parametrize(
    "body",
    [
        "",
        "not json",
        "[]",
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": b}}',
        '{"name": "f", "arguments": {"a" "b"}}',
        '{"name": "f", "x": ' + "[" * 100_000 + "}}",
    ],
)
def test_what_is_no_call_stays_text(body: str) -> None:
    reply = f"a \n<tool_call>{body}</tool_call> b"
    assert parse(reply) == (TextDelta(reply),)


@pytest.mark.parametrize(
    ("body", "arguments", "rest"),
    [
        ('{"name": "f", "arguments": {"a": 1,,}}', '{"a": 1', ",}}"),
        ('{"name": "f", "arguments": {"a": "b" c"}}', '{"a": "b"', 'c"}}'),
        ('{"name": "f", "arguments": {"a": 1} x}', '{"a": 1}', "x}"),
        ('{"name": "f", "arguments": {"a": 1}} x', '{"a": 1}', "x"),
    ],
)
def test_a_call_that_breaks_keeps_its_beginning(body: str, arguments: str, rest: str) -> None:
    expected = (ToolStart("t1", "f"), ToolInput(arguments), ToolEnd())
    assert parse(f"<tool_call>{body}</tool_call>") == (
        *expected,
        TextDelta(f"{rest}</tool_call>"),
    )


def test_too_deep_arguments_break() -> None:
    body = '{"name": "f", "arguments": {"a": ' + "[" * 100_000
    start, part, end, rest = parse(f"<tool_call>{body}")
    assert isinstance(part, ToolInput)
    assert isinstance(rest, TextDelta)
    assert len(part.partial_json + rest.text) == len('{"a": ') + 100_000


@pytest.mark.parametrize("rest", ["", " and so on", "</tool", "</tool_calls>", "</tool_call>"])
def test_a_missing_brace_leaves_no_end_mark(rest: str) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>'
    text = (TextDelta(rest.lstrip()),) if rest else ()
    assert parse(call + rest) == (ToolStart("t1", "f"), ToolInput('{"a": 1}'), ToolEnd(), *text)


@pytest.mark.parametrize("gap", ["", "\n", "</tool_call>\n"])
def test_a_call_behind_a_broken_one_is_found(gap: str) -> None:
    second = (ToolStart("t2", "read"), *READ[1:])
    begun = '<tool_call>{"name": "f", "arguments": {"a": "b" '
    first = (ToolStart("t1", "f"), ToolInput('{"a": "b"'), ToolEnd())
    assert parse(f"{begun}{gap}{CALL}") == (*first, *second)
    assert parse(f"<tool_call>{{{gap}{CALL}") == (TextDelta(f"<tool_call>{{{gap}".rstrip()), *READ)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "f"', None),
        ('{"name": "f", "argu', None),
        ('{"name": "f", "arguments": ', None),
        ('{"name": "f", "arguments": {', None),
        ('{"name": "f", "arguments": {"a": ', None),
        ('{"name": "f", "arguments": {"a": "x', '{"a": "x'),
        ('{"name": "f", "arguments": {"a": "x\\', '{"a": "x'),
        ('{"name": "f", "arguments": {"a": "\\u12', '{"a": "'),
        ('{"name": "f", "arguments": {"a": tr', None),
        ('{"name": "f", "arguments": {"a": 1, "b": tr', '{"a": 1'),
        ('{"name": "f", "arguments": {"a": 1}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}, "b', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}\n</tool_', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": "</tool_call> ', '{"a": "</tool_call> '),
    ],
)
def test_a_call_cut_off_comes_with_what_there_is(body: str, arguments: str | None) -> None:
    inputs = () if arguments is None else (ToolInput(arguments),)
    expected = (ToolStart("t1", "f"), *inputs, ToolEnd())
    assert parse(f"<tool_call>\n{body}") == expected


@pytest.mark.parametrize(
    "reply",
    [
        "a <tool_call>",
        '<tool_call>{"name": "f',
        '<tool_call>{"name": "f", "arguments": [1',
        '<tool_call>{"name": "f", "arguments": {"a" 1',
    ],
)
def test_a_call_cut_off_before_its_name_is_text(reply: str) -> None:
    assert parse(reply) == (TextDelta(reply),)


def test_stop_sequence_ends_the_reply() -> None:
    parser = ReplyParser(["STOP"], True, str)
    assert parser.feed(b"hello ST") == [TextDelta("hello")]
    assert parser.feed(b"OP there") == []
    assert parser.stopped == "STOP"
    assert parser.feed(b"more") == []
    assert parser.finish() == [TextDelta(" ")]


def test_held_beginning_of_a_stop_is_text_in_the_end() -> None:
    assert parse("a ST", stop=("STOP",)) == (TextDelta("a ST"),)


fragments = st.sampled_from(
    [CALL, "<tool_call>", "</tool_call>", "<tool", '"', "\\", "{", "é", " ", "\n", "text", "STOP"]
    + ['{"name": "f", "arguments": {"a": "', '"}}', '{"name": "f"']
)
replies = st.lists(fragments | st.text(max_size=2), max_size=12).map("".join)


@given(replies, st.lists(st.integers(0, 300)), st.sampled_from([(), ("STOP",), ("\n", "ex")]))
def test_any_split_gives_the_same_deltas(
    reply: str, cuts: list[int], stop: tuple[str, ...]
) -> None:
    data = reply.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    bytewise = [data[n : n + 1] for n in range(len(data))]
    whole = parse(data, stop=stop)
    assert parse(*pieces, stop=stop) == whole
    assert parse(*bytewise, stop=stop) == whole


@given(replies)
def test_nothing_but_calls_and_blanks_is_lost(reply: str) -> None:
    deltas = parse(reply)
    if all(isinstance(delta, TextDelta) for delta in deltas):
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == reply


def test_a_number_beyond_all_bounds_is_the_largest() -> None:
    body = '{"name": "f", "arguments": {"a": 1e999, "b": [-1e999]}}'
    [_, given, _] = parse(f"<tool_call>{body}</tool_call>")
    assert isinstance(given, ToolInput)
    assert json.loads(given.partial_json) == {
        "a": sys.float_info.max,
        "b": [-sys.float_info.max],
    }

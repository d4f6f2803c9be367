"""Every dialect of tool calls: transcripts, and what holds for all of them."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratoon.chat.formats.schema import typed
from ratoon.chat.formats.source import Source
from ratoon.chat.formats.table import DIALECTS, detect
from ratoon.chat.parser import (
    Delta,
    ReplyParser,
    TextDelta,
    ThinkingDelta,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from ratoon.config import ToolDialect
from tests.unit.chat.fakes import joined

GOLDEN = Path(__file__).parent / "golden" / "dialects"
MARK = "\n=====\n"
SCHEMAS = {
    "read": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "limit": {"type": "integer"},
            "deep": {"type": ["boolean", "null"]},
            "tags": {"type": "array"},
        },
    },
    "stop": {"type": "object", "properties": {}},
}
MARKS = [
    *("<parameter=path>", "</parameter>", "<function=read>", "</function>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    *("[ARGS]", "[CALL_ID]", '<|"|>', "call:read{", "```", "\\u00e4", "\\ud83d", "\\ude00"),
]
TRANSCRIPTS = sorted(GOLDEN.glob("*.txt"))

each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def parse(dialect: str, *pieces: bytes) -> list[Delta]:
    """The deltas, neighbours of one kind joined."""
    ids = count(1)
    parser = ReplyParser((), True, lambda: f"t{next(ids)}", DIALECTS[dialect], SCHEMAS)
    return joined([delta for piece in pieces for delta in parser.feed(piece)] + parser.finish())


def shown(deltas: list[Delta]) -> str:
    """One delta a line, as a transcript shows them."""
    lines = []
    for delta in deltas:
        match delta:
            case TextDelta(text):
                lines.append(f"text {json.dumps(text, ensure_ascii=False)}")
            case ThinkingDelta(text):
                lines.append(f"thinking {json.dumps(text, ensure_ascii=False)}")
            case ToolStart(_, name):
                lines.append(f"call {name}")
            case ToolInput(partial):
                lines.append(f"  {partial}")
    return "\n".join(lines)


def replies_of(dialect: str) -> list[str]:
    """Each reply of the dialect's transcripts."""
    texts = [f.read_text() for f in TRANSCRIPTS if f.name.split(".")[0] == dialect]
    return [part for text in texts for part in text.rstrip("\n").split(MARK)[::2]]


@pytest.mark.parametrize("file", TRANSCRIPTS, ids=lambda file: file.stem)
def test_transcripts(file: Path) -> None:
    parts = file.read_text().rstrip("\n").split(MARK)
    for reply, expected in zip(parts[::2], parts[1::2], strict=True):
        assert shown(parse(file.stem, reply.encode())) == expected


@each_dialect
def test_each_dialect_has_a_transcript(dialect: str) -> None:
    assert replies_of(dialect)


@each_dialect
def test_no_start_hides_another(dialect: str) -> None:
    starts = [form.start for form in DIALECTS[dialect].forms]
    clashes = [(a, b) for a in starts for b in starts if a != b and b.startswith(a)]
    assert not clashes


@each_dialect
def test_arguments_of_whole_calls_are_json_objects(dialect: str) -> None:
    deltas = parse(dialect, replies_of(dialect)[0].encode())
    inputs = [delta.partial_json for delta in deltas if isinstance(delta, ToolInput)]
    assert inputs
    assert all(isinstance(json.loads(text), dict) for text in inputs)


@each_dialect
def test_a_reply_cut_anywhere_keeps_its_first_call_or_its_text(dialect: str) -> None:
    reply = replies_of(dialect)[0]
    whole = parse(dialect, reply.encode())
    names = [delta.name for delta in whole if isinstance(delta, ToolStart)]
    for end in range(len(reply)):
        deltas = parse(dialect, reply[:end].encode())
        found = [delta.name for delta in deltas if isinstance(delta, ToolStart)]
        assert found == names[: len(found)]
        if not found and not DIALECTS[dialect].is_frame:
            assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == reply[:end]


@st.composite
def replies(draw: st.DrawFn, dialect: str) -> str:
    """The dialect's replies, cut up and mixed with what else may come."""
    own = replies_of(dialect)
    marks = [text for form in DIALECTS[dialect].forms for text in (form.start, form.end)]
    marks += MARKS
    noise = ["é", "\\", '"', "{", "}", "[", "]", " ", "\n", "text", "read", "<", "1", ",", ":", ";"]
    pieces: list[str] = []
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            reply = draw(st.sampled_from(own))
            a, b = sorted(draw(st.tuples(*[st.integers(0, len(reply))] * 2)))
            pieces.append(reply if draw(st.booleans()) else reply[a:b])
        else:
            pieces.append(draw(st.sampled_from(marks + noise) | st.text(max_size=2)))
    return "".join(pieces)


@each_dialect
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_split_gives_the_same_deltas(dialect: str, data: st.DataObject) -> None:
    raw = data.draw(replies(dialect)).encode()
    cuts = data.draw(st.lists(st.integers(0, len(raw))))
    edges = [0, *sorted(cuts), len(raw)]
    whole = parse(dialect, raw)
    pieces = [raw[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert parse(dialect, *pieces) == whole
    assert parse(dialect, *(raw[n : n + 1] for n in range(len(raw)))) == whole


@each_dialect
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_text_is_never_lost(dialect: str, data: st.DataObject) -> None:
    reply = data.draw(replies(dialect))
    deltas = parse(dialect, reply.encode())
    texts = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
    if len(texts) == len(deltas) and not DIALECTS[dialect].is_frame:
        assert "".join(texts) == reply
    at = 0
    is_frame = DIALECTS[dialect].is_frame  # markup between two texts, or a paragraph, joins them
    for text in "".join("".join(texts).split()) if is_frame else texts:
        at = reply.index(text, at) + len(text)
    n_starts = sum(isinstance(delta, ToolStart) for delta in deltas)
    assert n_starts == sum(isinstance(delta, ToolEnd) for delta in deltas)


@each_dialect
@settings(max_examples=40, deadline=None)
@given(before=st.text("ab .\n", max_size=5), after=st.text("ab .\n", max_size=5))
def test_text_around_calls_is_kept(dialect: str, before: str, after: str) -> None:
    reply = replies_of(dialect)[0]
    is_opening = all(form.is_opening for form in DIALECTS[dialect].forms)
    before = before if not is_opening else ""
    texts = [
        d.text
        for d in parse(dialect, f"{before}\n{reply}\n{after}".encode())
        if isinstance(d, TextDelta)
    ]
    kept = "".join("".join(texts).split())
    assert kept.startswith("".join(before.split()))
    assert kept.endswith("".join(after.split()))


def test_a_frame_is_read_where_no_tools_are() -> None:
    """A call that nobody asked for is text, and so is its markup."""
    parser = ReplyParser((), False, str, DIALECTS["gpt_oss"])
    reply = "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B"
    assert joined(parser.feed(reply.encode()) + parser.finish()) == [
        ThinkingDelta("A"),
        TextDelta("B"),
    ]
    parser = ReplyParser((), False, str, DIALECTS["gpt_oss"])
    reply = "<|channel|>commentary to=functions.read<|message|>{}<|call|>"
    assert "".join(shown(joined(parser.feed(reply.encode()) + parser.finish()))) == (
        'text "<|channel|>commentary to=functions.read<|message|>{}"'
    )


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_a_stop_sequence_counts_in_the_text_of_a_frame_only(n: int) -> None:
    reply = (
        b"<|channel|>analysis<|message|>The final STOP<|end|>"
        b"<|start|>assistant<|channel|>final<|message|>A ST, then STOP and more<|end|>"
        b'<|start|>assistant<|channel|>commentary to=functions.read<|message|>{"path": "STOP"}'
    )
    pieces = [reply[at : at + n] for at in range(0, len(reply), n)]
    for stop in ("final", "message", "STOP"):
        parser = ReplyParser([stop], True, lambda: "t1", DIALECTS["gpt_oss"], SCHEMAS)
        deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
        expected: list[Delta] = [ThinkingDelta("The final STOP")]
        expected.append(TextDelta("A ST, then " if stop == "STOP" else "A ST, then STOP and more"))
        if stop != "STOP":
            expected += [ToolStart("t1", "read"), ToolInput('{"path": "STOP"}'), ToolEnd()]
        assert joined(deltas) == expected
        assert parser.stopped == ("STOP" if stop == "STOP" else None)


@each_dialect
def test_arguments_come_as_they_are_written(dialect: str) -> None:
    """Before the end of the first string every character of it but a few is out."""
    reply = replies_of(dialect)[0]
    value = next(v for v in ("ä ", "a") if v in reply)
    head, tail = reply.split(value, 1)
    parser = ReplyParser((), True, str, DIALECTS[dialect], SCHEMAS)
    deltas = joined(parser.feed((head + value + "x" * 1000).encode()))
    assert any(isinstance(delta, ToolStart) and delta.name == "read" for delta in deltas)
    assert isinstance(deltas[-1], ToolInput)
    assert deltas[-1].partial_json.count("x") >= 980


LONG_REPLIES = [
    *((name, replies_of(name)[0].replace("ä ", "ä LONG")) for name in DIALECTS),
    ("hermes", '<tool_call>{"arguments": {"a": "LONG"}, "name": "read"}</tool_call>'),
    ("hermes", '<tool_call>{"id": "LONG", "name": "read"}</tool_call>'),
    ("hermes", '<tool_call>{"LONG": 1'),
    ("qwen_xml", "<function=read><parameter=tags>LONG</parameter></function>"),
    ("qwen_xml", "<function=LONG></function>"),
    ("glm", "<tool_call>read<arg_key>x</arg_key><arg_value>LONG</arg_value></tool_call>"),
    ("gpt_oss", "<|channel|>analysis<|message|>LONG<|end|>"),
    ("gpt_oss", "to=LONG"),
]


@pytest.mark.parametrize(("dialect", "reply"), LONG_REPLIES)
def test_the_work_grows_with_the_length(
    dialect: str, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: the characters that a reading has before it at each piece."""
    plain = Source.feed
    n_read = 0

    def feed(source: Source, text: str) -> None:
        nonlocal n_read
        plain(source, text)
        n_read += len(source.text)

    monkeypatch.setattr(Source, "feed", feed)
    work = []
    for size in (5_000, 10_000):
        n_read = 0
        data = reply.replace("LONG", "a< n" * size).encode()
        parse(dialect, *(data[n : n + 3] for n in range(0, len(data), 3)))
        work.append(n_read)
    assert work[1] < 2.2 * work[0]
    assert "LONG" in reply


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("<tool_call>{{ call | tojson }}</tool_call>", "hermes"),
        ("<tool_call><function=f><parameter=k>v</parameter></function></tool_call>", "qwen_xml"),
        ('<|start_header_id|>{"name": f, "parameters": {}}', "llama3"),
        ("[TOOL_CALLS]{{ name }}[ARGS]", "mistral"),
        ("<tool_call>f<arg_key>k</arg_key></tool_call>", "glm"),
        ("<｜tool▁calls▁begin｜>", "deepseek"),
        ("<|tool_calls_section_begin|>", "kimi"),
        ("<|start_of_role|>assistant<tool_call>", "granite"),
        ("<|system|><|tool|>{{ tools }}<|/tool|>", "phi"),
        ("<|tool_list_start|>", "lfm2"),
        ("<start_of_turn>model", "gemma"),
        ("<|start|>assistant<|channel|>final<|message|>", "gpt_oss"),
        ("<|tool_call>call:f{}<tool_call|>", "gemma"),
        ("nothing known", "hermes"),
    ],
)
def test_a_template_tells_its_dialect(source: str, name: str) -> None:
    assert detect(source) is DIALECTS[name]


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5", {"type": ["string", "null"]}, "5"),
        ("null", {"type": ["string", "null"]}, None),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 5),
        ("5", {"anyOf": [{"type": "object"}, {"$ref": "#/x"}]}, 5),
        ("True", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("1.5", {"type": "number"}, 1.5),
        ("[1", {"type": "array"}, "[1"),
        ("['x', {'y': None}]", {"type": "array"}, ["x", {"y": None}]),
        ("['x']", {"type": "string"}, "['x']"),
        ("['x', {1, 2}]", {"type": "array"}, "['x', {1, 2}]"),
        ("{'a': 1e999}", {"type": "object"}, "{'a': 1e999}"),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"const": "2"}, "2"),
        ('"quoted"', None, '"quoted"'),
        ('{"a": 1}', None, {"a": 1}),
        ("NaN", None, "NaN"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
    ],
)
def test_bare_text_is_typed_by_the_schema(text: str, schema: object, value: object) -> None:
    found = typed(text, schema)
    assert (type(found), found) == (type(value), value)


@each_dialect
def test_deep_nesting_is_text_or_a_call_but_no_error(dialect: str) -> None:
    for form in DIALECTS[dialect].forms:
        for opening in ("[", "{", '{"a":', "f(a=[", "call:f{a:["):
            reply = form.start + opening + "[" * 50_000 + form.end
            assert shown(parse(dialect, reply.encode()))


def test_every_dialect_can_be_set() -> None:
    assert get_args(ToolDialect) == ("auto", *DIALECTS)


def test_forms_of_two_dialects_together() -> None:
    hermes = DIALECTS["hermes"]
    both = DIALECTS["glm"].also(hermes)
    assert [form.read for form in both.forms] == [form.read for form in hermes.forms]
    assert both.show is hermes.show
    both = DIALECTS["deepseek"].also(hermes)
    assert len(both.forms) == 1 + len(hermes.forms)


NAMES = st.text("abcxyz_", min_size=1, max_size=8)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=9)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(NAMES, SCALARS, max_size=2)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=2)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=2)


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if DIALECTS[name].show])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(calls=CALLS)
def test_calls_that_are_shown_are_read(dialect: str, calls: list[tuple[str, Any]]) -> None:
    show = DIALECTS[dialect].show
    assert show is not None
    found: list[tuple[str, Any]] = []
    for delta in parse(dialect, show(calls).encode()):
        if isinstance(delta, ToolStart):
            found.append((delta.name, None))
        elif isinstance(delta, ToolInput):
            found[-1] = (found[-1][0], json.loads(delta.partial_json))
    assert found == calls

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.reuse.echo import means_same
from ratoon.reuse.replies import EchoedBlock, EchoedCall, SentBlock, SentCall, Text, Thought

SCHEMAS: dict[str, dict[str, Any]] = {
    "Bash": {
        "type": "object",
        "properties": {
            "command": {"type": "string"},
            "description": {"type": "string"},
            "timeout": {"type": "number"},
            "n_lines": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "limit": {"type": "string"},
            "is_quiet": {"type": "boolean", "default": False},
            "level": {"$ref": "#/$defs/level"},
            "paths": {"type": "array", "items": {"type": "string"}},
            "env": {"type": "object", "properties": {"depth": {"type": ["integer", "null"]}}},
            "edits": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "old": {"type": "string"},
                        "all": {"type": "boolean", "default": True},
                    },
                },
            },
        },
        "required": ["command", "limit"],
        "$defs": {"level": {"type": "integer", "default": 3}},
    }
}
SAID = Text("I look.")
THOUGHT = Thought("Hm.", "sig")
TOLD = SentCall("t1", "Bash", '{"command": "ls"}')
BACK = EchoedCall("t1", "Bash", {"command": "ls"})


def is_same_input(raw: str, echoed: dict[str, Any], **partial: Any) -> bool:
    sent = SentCall("t1", "Bash", raw, partial or None)
    return means_same([sent], [EchoedCall("t1", "Bash", echoed)], SCHEMAS)


def is_same_value(sent: dict[str, Any], echoed: dict[str, Any]) -> bool:
    return is_same_input(json.dumps(sent), echoed)


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ({"command": "ls", "timeout": 5}, {"timeout": 5, "command": "ls"}),
        ({"command": "ls"}, {"is_quiet": False, "command": "ls"}),  # the schema's default
        ({"command": "ls"}, {"command": "ls", "level": 3}),  # behind a reference
        ({"command": "ls"}, {"command": "ls", "description": ""}),  # nothing
        ({"command": "ls"}, {"command": "ls", "paths": [], "env": {}}),
        ({"command": "ls"}, {"command": "ls", "timeout": None}),
        ({"edits": [{"old": "a"}]}, {"edits": [{"all": True, "old": "a"}]}),
        ({"timeout": 5000.0}, {"timeout": 5000}),
        ({"more": 1.0}, {"more": 1}),  # JSON knows one kind of number only
        ({"timeout": "5000"}, {"timeout": 5000}),
        ({"timeout": "-2.50e1"}, {"timeout": -25}),
        ({"n_lines": "7"}, {"n_lines": 7}),  # one of several types
        ({"env": {"depth": "7"}}, {"env": {"depth": 7}}),
        ({"limit": "2"}, {"limit": "2"}),
        ({"command": "cd /work && ls"}, {"command": "ls"}),
        ({"command": 'cd "/my work" && ls -l\n'}, {"command": "ls -l\n"}),
        ({"command": "cd '/a b' && ls  "}, {"command": "ls"}),
        ({"description": "a  \n b\t\n\nc "}, {"description": "a\n b\n\nc"}),
        ({"paths": ["a ", "b"]}, {"paths": ["a", "b"]}),
        ({"more": [1, "2", None, True]}, {"more": [1, "2", None, True]}),  # unknown keys stay
        ({}, {}),
    ],
)
def test_rewrites_of_an_input(sent: dict[str, Any], echoed: dict[str, Any]) -> None:
    assert is_same_value(sent, echoed)


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ({"command": "ls"}, {"command": "ls -a"}),
        ({"command": "ls"}, {"command": "LS"}),
        ({"command": " ls"}, {"command": "ls"}),
        ({"command": "ls"}, {"command": "ls "}),
        ({"command": "ls"}, {}),
        ({"command": "ls", "more": 1}, {"command": "ls"}),
        ({"command": "ls"}, {"command": "ls", "more": ""}),  # not in the schema
        ({"command": "ls"}, {"command": "ls", "is_quiet": True}),
        ({"command": "ls"}, {"command": "ls", "level": 0}),
        ({"command": "ls"}, {"command": "ls", "level": None}),  # has another default
        ({"command": "ls"}, {"command": "ls", "limit": ""}),  # required
        ({"command": "ls"}, {"command": "ls", "description": "x"}),
        ({"command": "ls"}, {"command": "ls", "description": False}),  # of the wrong type
        ({"command": "ls"}, {"command": "ls", "timeout": 0}),
        ({"edits": [{"old": "a"}]}, {"edits": [{"old": "a", "all": False}]}),
        ({"edits": [{"old": "a"}, {"old": "b"}]}, {"edits": [{"old": "b"}, {"old": "a"}]}),
        ({"edits": [{"old": "a"}]}, {"edits": []}),
        ({"timeout": 5000.5}, {"timeout": 5000}),
        ({"timeout": "5000"}, {"timeout": 500}),
        ({"timeout": " 5000"}, {"timeout": 5000}),
        ({"timeout": "0x10"}, {"timeout": 16}),
        ({"timeout": True}, {"timeout": 1}),
        ({"timeout": 1}, {"timeout": True}),
        ({"timeout": 5000}, {"timeout": "5000"}),
        ({"limit": "2"}, {"limit": 2}),
        ({"more": "1"}, {"more": 1}),  # no schema says that it is a number
        ({"more": {}}, {"more": []}),
        ({"command": "cd /work && ls"}, {"command": "cd /work"}),
        ({"command": "cd /work; ls"}, {"command": "ls"}),
        ({"command": "cd /a && cd /b && ls"}, {"command": "ls"}),
        ({"command": "rm x && ls"}, {"command": "ls"}),
        ({"command": "ls"}, {"command": "cd /work && ls"}),
        ({"description": "cd /work && ls"}, {"description": "ls"}),
        ({"description": "a\n\nb"}, {"description": "a\nb"}),
        ({"description": "a  b"}, {"description": "a b"}),
        ({"description": "a  \nb "}, {"description": "a\nb "}),
        ({"command": "ls"}, {"command": ["ls"]}),
        ({"command": None}, {"command": ""}),
    ],
)
def test_edits_of_an_input(sent: dict[str, Any], echoed: dict[str, Any]) -> None:
    assert not is_same_value(sent, echoed)


def test_escapes_are_the_characters_they_stand_for() -> None:
    assert is_same_input('{"command": "caf\\u00e9 \\ud83e\\uddec"}', {"command": "café \U0001f9ec"})
    assert not is_same_input('{"command": "caf\\u00e9"}', {"command": "cafe"})


def test_an_input_that_was_cut_off() -> None:
    raw = '{"command": "echo \U0001f9ec'
    kept = {"raw": raw, "len": len(raw) + 1}  # two units in UTF-16
    assert is_same_input(raw, {"__unparsedToolInput": kept})
    assert is_same_input(raw, {"__unparsedToolInput": {"raw": raw}})
    assert is_same_input(raw, {"command": "echo"}, command="echo")
    for other in ({"raw": raw[:-1]}, {"raw": raw, "len": 3}, {"raw": raw, "x": 1}, raw, {}):
        assert not is_same_input(raw, {"__unparsedToolInput": other})
    assert not is_same_input(raw, {"__unparsedToolInput": kept, "x": 1})
    assert not is_same_input(raw, {"command": "echo"})
    assert not is_same_input('{"command": "ls"}', {"__unparsedToolInput": {"raw": "{}"}})


def test_a_long_input_that_was_cut_off() -> None:
    raw = '{"command": "' + "\U0001f9ec" * 2000
    n_units = len(raw.encode("utf-16-le")) // 2
    start = raw.encode("utf-16-le")[: 2 * 2048].decode("utf-16-le", "surrogatepass")
    assert is_same_input(raw, {"__unparsedToolInput": {"raw": start, "len": n_units}})
    for other in (
        {"raw": start, "len": 2048},
        {"raw": start[:-1], "len": n_units},
        {"raw": "x" + start[1:], "len": n_units},
    ):
        assert not is_same_input(raw, {"__unparsedToolInput": other})


def test_an_empty_input() -> None:
    assert is_same_input("", {})
    assert is_same_input("", {"is_quiet": False})
    assert not is_same_input("", {"command": "ls"})


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ([SAID], [SAID]),
        ([Text("  a\n")], [Text("  a\n")]),
        ([Text(" \n"), SAID, Text("\n")], [SAID]),
        ([SAID], [Text(" "), SAID]),
        ([Text("\n")], []),
        ([SAID, TOLD, Text("Then.")], [SAID, Text("Then."), BACK]),
        ([SAID, TOLD, Text("Then.")], [SAID, BACK, Text("Then.")]),
        ([THOUGHT, SAID, TOLD], [THOUGHT, SAID, BACK]),
        ([THOUGHT, SAID, THOUGHT, TOLD], [SAID, BACK]),
        ([THOUGHT, Text("a"), THOUGHT, Text("b")], [THOUGHT, Text("a"), THOUGHT, Text("b")]),
    ],
)
def test_rewrites_of_a_reply(sent: list[SentBlock], echoed: list[EchoedBlock]) -> None:
    assert means_same(sent, echoed, SCHEMAS)


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        ([SAID], [Text("I look")]),
        ([SAID], [Text("I look. ")]),
        ([SAID], []),
        ([SAID], [SAID, SAID]),
        ([Text("a"), Text("b")], [Text("b"), Text("a")]),
        ([Text("a"), Text("b")], [Text("ab")]),
        ([SAID, TOLD], [SAID]),
        ([SAID, TOLD], [BACK, SAID]),
        ([SAID], [SAID, BACK]),
        ([TOLD], [EchoedCall("t2", "Bash", {"command": "ls"})]),
        ([TOLD], [EchoedCall("t1", "bash", {"command": "ls"})]),
        ([TOLD, SentCall("t2", "Bash", '{"command": "ls"}')], [BACK]),
        (
            [TOLD, SentCall("t2", "Bash", "{}")],
            [EchoedCall("t2", "Bash", {}), BACK],
        ),
        ([THOUGHT, SAID], [Thought("Hm", "sig"), SAID]),
        ([THOUGHT, SAID], [Thought("Hm.", "other"), SAID]),
        ([THOUGHT, SAID], [SAID, THOUGHT]),
        ([THOUGHT, SAID, THOUGHT], [THOUGHT, SAID]),
        ([SAID], [THOUGHT, SAID]),
        ([Text("t1")], [EchoedCall("t1", "Bash", {})]),
    ],
)
def test_edits_of_a_reply(sent: list[SentBlock], echoed: list[EchoedBlock]) -> None:
    assert not means_same(sent, echoed, SCHEMAS)


def test_schemas_that_refer_to_themselves() -> None:
    node: dict[str, Any] = {"$ref": "#", "anyOf": [{"$ref": "#"}, {"$ref": "#/no/such"}, 3]}
    node["properties"] = {"next": {"$ref": "#"}}
    sent = [SentCall("t", "N", '{"next": {"next": {}}}')]
    assert means_same(sent, [EchoedCall("t", "N", {"next": {"next": {}}})], {"N": node})
    assert not means_same(sent, [EchoedCall("t", "N", {"next": {}})], {"N": node})


lines = st.sampled_from(["a", "b  ", "", "\t", "cd x && y", " é"])
strings = st.lists(lines, min_size=1, max_size=4).map("\n".join)
inputs = st.fixed_dictionaries(
    {"command": strings.map(lambda s: "x" + s)},
    optional={
        "timeout": st.integers(0, 9999),
        "paths": st.lists(strings, max_size=3),
        "edits": st.lists(st.fixed_dictionaries({"old": strings}), max_size=2),
        "more": st.none() | st.booleans() | strings,
    },
)
spoken = st.lists(
    st.builds(Text, strings.map(lambda s: f"{s}."))
    | st.builds(Thought, strings, strings)
    | st.builds(lambda value: ("call", value), inputs),
    max_size=5,
)


def stripped(value: Any) -> Any:
    if isinstance(value, str):
        return "\n".join(line.rstrip(" \t") for line in value.split("\n"))
    if isinstance(value, list):
        return [stripped(item) for item in value]
    if isinstance(value, dict):
        return {key: stripped(item) for key, item in value.items()}
    return value


def as_sent(value: dict[str, Any], data: st.DataObject) -> str:
    """The JSON that a model might write for what will come back as ``value``."""
    written = dict(value)
    if data.draw(st.booleans()):
        written["command"] = f"cd /w/{len(value)} && {value['command']}"
    if "timeout" in written:
        forms = (int, float, str)
        written["timeout"] = data.draw(st.sampled_from(forms))(value["timeout"])
    keys = data.draw(st.permutations(list(written)))
    indent = data.draw(st.none() | st.integers(0, 2))
    ascii_only = data.draw(st.booleans())
    return json.dumps({key: written[key] for key in keys}, indent=indent, ensure_ascii=ascii_only)


def as_echoed(value: dict[str, Any], data: st.DataObject) -> dict[str, Any]:
    """The same input as a client may rewrite it."""
    added: dict[str, Any] = {"is_quiet": False, "level": 3, "description": "", "env": {}}
    chosen = data.draw(st.sets(st.sampled_from(sorted(added))))
    whole = {**value, **{key: added[key] for key in sorted(chosen)}}
    if data.draw(st.booleans()):
        whole = stripped(whole)
    keys = data.draw(st.permutations(list(whole)))
    return {key: whole[key] for key in keys}


def reply_and_echo(
    said: list[Any], data: st.DataObject
) -> tuple[list[SentBlock], list[EchoedBlock]]:
    sent: list[SentBlock] = []
    echoed: list[EchoedBlock] = []
    drops_thoughts = data.draw(st.booleans())
    for n, block in enumerate(said):
        if data.draw(st.booleans()):
            sent.append(Text(data.draw(st.sampled_from(["", " ", "\n\n"]))))
        if isinstance(block, tuple):
            sent.append(SentCall(f"t{n}", "Bash", as_sent(block[1], data)))
            echoed.append(EchoedCall(f"t{n}", "Bash", as_echoed(block[1], data)))
        else:
            sent.append(block)
            if not (drops_thoughts and isinstance(block, Thought)):
                echoed.append(block)
    if data.draw(st.booleans()):
        echoed.sort(key=lambda block: isinstance(block, EchoedCall))
    return sent, echoed


@given(spoken, st.data())
def test_any_combination_of_rewrites_means_the_same(said: list[Any], data: st.DataObject) -> None:
    sent, echoed = reply_and_echo(said, data)
    assert means_same(sent, echoed, SCHEMAS)


@given(spoken.filter(bool), st.data())
def test_any_edit_beside_rewrites_is_seen(said: list[Any], data: st.DataObject) -> None:
    sent, echoed = reply_and_echo(said, data)
    edits = [dropped, doubled, changed]
    edited = data.draw(st.sampled_from(edits))(echoed, data) if echoed else [Text("new")]
    assert not means_same(sent, edited, SCHEMAS)


def dropped(echoed: list[EchoedBlock], data: st.DataObject) -> list[EchoedBlock]:
    kept = [block for block in echoed if not isinstance(block, Thought)]
    if not kept:
        return [Text("new")]
    victim = data.draw(st.integers(0, len(kept) - 1))
    return [block for block in echoed if block is not kept[victim]]


def doubled(echoed: list[EchoedBlock], data: st.DataObject) -> list[EchoedBlock]:
    at = data.draw(st.integers(0, len(echoed) - 1))
    return [*echoed[: at + 1], *echoed[at:]]


def changed(echoed: list[EchoedBlock], data: st.DataObject) -> list[EchoedBlock]:
    at = data.draw(st.integers(0, len(echoed) - 1))
    new: EchoedBlock
    match echoed[at]:
        case Text(text):
            new = Text(text + "!")
        case Thought(text, signature):
            new = Thought("!" + text, signature)
        case EchoedCall(id, name, value):
            key = data.draw(st.sampled_from(sorted(value)))
            new = EchoedCall(id, name, {**value, key: data.draw(others(value[key]))})
    return [*echoed[:at], new, *echoed[at + 1 :]]


def others(value: Any) -> st.SearchStrategy[Any]:
    """Values that mean something else than ``value`` and that no rewrite makes of it."""
    if isinstance(value, str):
        return st.sampled_from(["!" + value, value + "!", 7])
    return st.just("!")

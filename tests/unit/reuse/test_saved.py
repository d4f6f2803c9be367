"""Replies as bytes: exact both ways, and nothing else is taken for one."""

from __future__ import annotations

import json
import logging
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.reuse.replies import Origin, Reply, ReplyMemory, SentCall, Text, Thought
from ratoon.reuse.saved import BadReply, SavedReplies, dump_reply, load_reply

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(ANY_TEXT, VALUES, max_size=3)
BLOCKS = st.one_of(
    st.builds(Text, ANY_TEXT),
    st.builds(Thought, ANY_TEXT, ANY_TEXT),
    st.builds(SentCall, ANY_TEXT, ANY_TEXT, ANY_TEXT, st.none() | OBJECTS),
)
DIGESTS = st.binary(max_size=16)
REPLIES = st.builds(
    Reply,
    st.builds(Origin, DIGESTS, ANY_TEXT, ANY_TEXT),
    st.lists(st.integers(0, 2**31 - 1)).map(lambda tokens: array("i", tokens)),
    st.lists(BLOCKS, max_size=4).map(tuple),
    DIGESTS,
)
REPLY = Reply(
    Origin(b"\0context", "tail\n", "header"),
    array("i", [0, 7, 2**31 - 1]),
    (
        Thought("Hm.", "c2ln"),
        Text("a half \ud83d, two halves \ud83d\ude00, a whole \U0001f600"),
        SentCall("t1", "Write", '{"a": "x', {"a": "x", "n": [1, 2.5, None, True]}),
    ),
    b"path",
)


@given(REPLIES)
def test_a_reply_comes_back_as_it_was(reply: Reply) -> None:
    again = load_reply(dump_reply(reply))
    assert again == reply
    assert again.place == reply.place
    assert repr(again) == repr(reply), "equal is not enough: 1 == True"


def test_the_form_is_the_same_on_every_machine() -> None:
    assert (
        json.loads(dump_reply(Reply(REPLY.origin, array("i", [1, 258]), (), b"")))["tokens"]
        == "AQAAAAIBAAA="
    )


def test_halves_of_a_pair_stay_halves() -> None:
    again = load_reply(dump_reply(REPLY))
    assert again == REPLY
    assert isinstance(again.blocks[1], Text)
    assert len(again.blocks[1].text) == len("a half x, two halves xx, a whole x")


@given(REPLIES, st.data())
def test_no_part_of_a_saved_reply_is_taken_for_one(reply: Reply, data: st.DataObject) -> None:
    whole = dump_reply(reply)
    start, end = sorted(data.draw(st.integers(0, len(whole))) for _ in range(2))
    if (start, end) != (0, len(whole)):
        with pytest.raises(BadReply):
            load_reply(whole[start:end])


@given(REPLIES, st.data())
def test_a_flipped_bit_is_seen_or_makes_another_sound_reply(
    reply: Reply, data: st.DataObject
) -> None:
    torn = bytearray(dump_reply(reply))
    torn[data.draw(st.integers(0, len(torn) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        other = load_reply(bytes(torn))
    except BadReply:
        return
    assert dump_reply(other) == torn
    assert other != reply


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BadReply):
        load_reply(data)


def fields(**changed: Any) -> bytes:
    value = {**json.loads(dump_reply(REPLY).decode("utf-8", "surrogatepass")), **changed}
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"version": True},
        {"version": 1.0},
        {"more": 1},
        {"context": "0g"},
        {"context": "AB"},
        {"context": "0 1"},
        {"context": None},
        {"path": ["00"]},
        {"tail": 5},
        {"header": None},
        {"tokens": [1]},
        {"tokens": None},
        {"tokens": "AAAAAA"},
        {"tokens": "AAAAAAA="},
        {"tokens": "AAAAAB=="},
        {"tokens": "AA AAAA=="},
        {"tokens": "AQAAAAI="},
        {"tokens": "/////w=="},
        {"tokens": "-____w=="},
        {"tokens": "é"},
        {"blocks": {}},
        {"blocks": [[]]},
        {"blocks": ["text"]},
        {"blocks": [["text"]]},
        {"blocks": [["text", 5]]},
        {"blocks": [["text", "a", "b"]]},
        {"blocks": [["thought", "a", None]]},
        {"blocks": [["call", "t", "n", "{}", []]]},
        {"blocks": [["call", "t", "n", "{}"]]},
        {"blocks": [["word", "a"]]},
    ],
    ids=str,
)
def test_a_field_of_another_kind_is_refused(changed: dict[str, Any]) -> None:
    assert load_reply(fields()) == REPLY
    with pytest.raises(BadReply, match="it is n"):
        load_reply(fields(**changed))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data + b" ",
        lambda data: data.replace(b'"tokens"', b' "tokens"'),
        lambda data: data.replace(b'{"version":1', b'{"version":1,"version":1'),
        lambda data: data.replace(b"header", b"\\u0068eader"),
        lambda data: b"[" * 100_000,
        lambda data: data.replace(b'"n":[', b'"n":[' + b"[" * 100_000 + b"]" * 100_000 + b","),
    ],
)
def test_another_spelling_is_refused(spoil: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadReply):
        load_reply(spoil(dump_reply(REPLY)))


class Shelf:
    """Records in a dictionary, in the order of their use."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.calls: list[str] = []

    def put(self, name: str, data: bytes) -> None:
        self.calls.append("put")
        self.kept.pop(name, None)
        self.kept[name] = data

    def touch(self, name: str) -> None:
        self.calls.append("touch")
        self.kept[name] = self.kept.pop(name)

    def remove(self, name: str) -> None:
        self.calls.append("remove")
        self.kept.pop(name, None)

    def load(self) -> list[tuple[str, bytes]]:
        return list(self.kept.items())


def say(context: str, *blocks: Text | Thought) -> Reply:
    return Reply(Origin(context.encode(), "", ""), array("i", [1]), blocks, context.encode())


def opened(shelf: Shelf, max_bytes: int = 1 << 20, *, reasons: bool = True) -> ReplyMemory:
    """A memory as a server opens it."""
    saved = SavedReplies(shelf)
    memory = ReplyMemory(max_bytes, saved)
    memory.keep_reasoning(reasons)
    memory.restore(saved.replies())
    return memory


def held(memory: ReplyMemory) -> list[Reply]:
    return list(memory._replies.values())


A, B, C = (say(context, Text("Yes.")) for context in "abc")
DEEP = say("d", Thought("Hm.", "s"), Text("Yes."))


def test_a_new_memory_has_what_the_old_one_had_in_order() -> None:
    shelf = Shelf()
    memory = opened(shelf)
    for reply in (A, B, DEEP, C):
        memory.remember(reply)
    memory.find([Text("Yes.")], b"a")
    memory.forget([b"c"])
    shelf.calls.clear()
    again = opened(shelf)
    assert held(again) == held(memory) == [B, DEEP, A]
    assert again.n_bytes == memory.n_bytes
    assert shelf.calls == [], "it is not told what it has told"
    again.forget([b"b"])
    assert held(opened(shelf)) == [DEEP, A], "what was restored is dropped like any other"


def test_replies_with_reasoning_leave_the_disk_where_none_may_reason() -> None:
    shelf = Shelf()
    memory = opened(shelf)
    memory.remember(A)
    memory.remember(DEEP)
    memory.keep_reasoning(False)
    assert held(opened(shelf)) == [A]
    memory.remember(DEEP)
    assert held(opened(shelf)) == [A]
    memory.keep_reasoning(True)
    memory.remember(DEEP)
    assert held(opened(shelf)) == [A, DEEP]
    assert held(opened(shelf, reasons=False)) == [A]
    assert held(opened(shelf)) == [A], "a server that was locked meanwhile dropped it for good"


def test_a_smaller_memory_drops_the_oldest_from_disk_too() -> None:
    shelf = Shelf()
    memory = opened(shelf)
    for reply in (A, B, C):
        memory.remember(reply)
    assert held(opened(shelf, 2 * A.n_bytes)) == [B, C]
    assert len(shelf.kept) == 2


def test_a_reply_too_large_for_the_memory_costs_no_other() -> None:
    shelf = Shelf()
    memory = opened(shelf, 4000)
    memory.remember(A)
    memory.remember(say("b", Text("x" * 5000)))
    assert held(memory) == held(opened(shelf)) == [A]


def test_a_newer_reply_in_the_same_place_takes_over() -> None:
    shelf = Shelf()
    memory = opened(shelf)
    memory.remember(A)
    newer = Reply(A.origin, array("i", [2, 3]), A.blocks, b"other")
    memory.remember(newer)
    assert held(opened(shelf)) == [newer]
    memory.restore([A])
    assert held(memory) == [newer]


def test_what_is_no_reply_is_removed_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    memory = opened(shelf)
    for reply in (A, B, C):
        memory.remember(reply)
    (_, of_a), (name, of_b), _ = shelf.kept.items()
    shelf.kept[name] = of_a  # sound, but not what the name tells
    shelf.kept["junk"] = of_b[:-1]
    with caplog.at_level(logging.WARNING):
        assert held(opened(shelf)) == [A, C]
    assert len(caplog.records) == 1
    assert "removed 2" in caplog.text
    assert len(shelf.kept) == 2

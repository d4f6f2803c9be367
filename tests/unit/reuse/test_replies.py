from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

from ratoon.reuse.replies import (
    EchoedBlock,
    EchoedCall,
    Origin,
    Outcome,
    Reply,
    ReplyMemory,
    SentBlock,
    SentCall,
    Text,
    Thought,
    path_digest,
)


def reply(context: str, *blocks: SentBlock, tokens: Sequence[int] = (1, 2)) -> Reply:
    path = path_digest([*context.encode(), *tokens])
    return Reply(Origin(context.encode(), "", ""), array("i", tokens), blocks, path)


def found(memory: ReplyMemory, context: str, *blocks: EchoedBlock) -> Reply | None:
    outcome, reply = memory.find(blocks, context.encode())
    assert (outcome is Outcome.REPLAYED) == (reply is not None)
    return reply


def test_calls_are_found_by_their_ids() -> None:
    memory = ReplyMemory(1 << 20)
    kept = reply("c", Text("Look."), SentCall("t1", "Read", "{}"), SentCall("t2", "Read", "{}"))
    memory.remember(kept)
    echo = [EchoedCall("t1", "Write", {"x": 1}), EchoedCall("t2", "Read", {})]
    assert found(memory, "c", *echo, Text("other")) is kept
    assert found(memory, "c", *reversed(echo)) is None
    assert found(memory, "c", Text("Look.")) is None
    assert found(memory, "c", echo[0]) is None


def test_texts_are_found_by_what_is_not_blank() -> None:
    memory = ReplyMemory(1 << 20)
    kept = reply("c", Thought("hm", "s"), Text(" \n"), Text("a"), Text("b "))
    memory.remember(kept)
    assert found(memory, "c", Text("a"), Text("b ")) is kept
    assert found(memory, "c", Text("a"), Text(""), Text("b ")) is kept
    for other in ([Text("a"), Text("b")], [Text("ab ")], [Text("b "), Text("a")], []):
        assert found(memory, "c", *other) is None


def test_a_text_is_not_taken_for_an_id() -> None:
    memory = ReplyMemory(1 << 20)
    memory.remember(reply("c", SentCall("t1", "Read", "{}")))
    assert found(memory, "c", Text("t1")) is None


def test_a_reply_belongs_to_its_context() -> None:
    memory = ReplyMemory(1 << 20)
    replies = [reply(context, Text("Yes"), tokens=[n]) for n, context in enumerate("abc")]
    for each in replies:
        memory.remember(each)
    assert [found(memory, context, Text("Yes")) for context in "abc"] == replies
    assert memory.find([Text("Yes")], b"d") == (Outcome.ELSEWHERE, None)
    assert memory.find([Text("No")], b"a") == (Outcome.UNKNOWN, None)


def test_the_newest_of_replies_that_look_alike() -> None:
    memory = ReplyMemory(1 << 20)
    old, new = (reply("c", Text("Yes"), tokens=[n]) for n in range(2))
    memory.remember(old)
    memory.remember(new)
    assert found(memory, "c", Text("Yes")) is new
    assert len(memory) == 1
    memory.forget([old.path])
    assert found(memory, "c", Text("Yes")) is new


def test_forgotten_with_its_path() -> None:
    memory = ReplyMemory(1 << 20)
    # two siblings said the same, and only the ids differ
    twins = [reply("c", SentCall(id, "Read", "{}")) for id in ("t1", "t2")]
    other = reply("d", SentCall("t3", "Read", "{}"))
    for each in (*twins, other):
        memory.remember(each)
    memory.forget([twins[0].path, b"never heard of"])
    assert len(memory) == 1
    assert memory.n_bytes == other.n_bytes
    assert memory.find([EchoedCall("t1", "Read", {})], b"c") == (Outcome.UNKNOWN, None)
    assert found(memory, "d", EchoedCall("t3", "Read", {})) is other
    memory.forget([other.path])
    assert (len(memory), memory.n_bytes) == (0, 0)


def test_bounded_and_the_least_recently_used_goes_first() -> None:
    replies = [reply(context, Text("x" * 1000), tokens=[1] * 1000) for context in "abc"]
    memory = ReplyMemory(2 * replies[0].n_bytes)
    memory.remember(replies[0])
    memory.remember(replies[1])
    assert found(memory, "a", Text("x" * 1000)) is replies[0]
    memory.remember(replies[2])
    assert memory.n_bytes <= memory.max_bytes
    kept = [found(memory, context, Text("x" * 1000)) for context in "abc"]
    assert kept == [replies[0], None, replies[2]]


def test_a_reply_over_the_bound_is_not_kept() -> None:
    memory = ReplyMemory(4000)
    memory.remember(reply("a", Text("x" * 5000)))
    assert (len(memory), memory.n_bytes) == (0, 0)


def test_the_size_is_about_that_of_the_parts() -> None:
    cut = SentCall("t", "Write", "x" * 10_000, {"content": "x" * 10_000})
    assert reply("a", cut, tokens=[1] * 10_000).n_bytes > 60_000
    assert reply("a", Thought("x" * 10_000, "y" * 10_000)).n_bytes > 20_000


def test_many_threads_at_once() -> None:
    memory = ReplyMemory(20_000)

    def work(n: int) -> None:
        for i in range(300):
            kept = reply(f"{i % 7}", Text(f"{n % 2}"), tokens=[i] * (i % 50))
            memory.remember(kept)
            memory.find([Text("0")], b"3")
            memory.forget([kept.path] if i % 3 else [])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 <= memory.n_bytes <= memory.max_bytes
    for context in range(7):
        for text in "01":
            kept = found(memory, f"{context}", Text(text))
            memory.forget([kept.path] if kept is not None else [])
    assert (len(memory), memory.n_bytes) == (0, 0)

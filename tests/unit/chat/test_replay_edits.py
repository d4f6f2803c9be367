"""Sampled replies, put back in conversations that the server searched in or edited."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from ratoon.chat.normalise import Rules
from ratoon.chat.render import Prompt, Renderer
from ratoon.reuse.replies import Reply, ReplyMemory, SentCall, Text, Thought, path_digest
from tests.unit.chat.fakes import CHATML, CHATML_TOOLS, ByteVocab, request, template, text, tool

SEARCH = {"type": "tool_search_tool_bm25", "name": "find"}
TOOLS = [SEARCH, tool("later", defer_loading=True)]
USE = {"type": "server_tool_use", "id": "srv1", "name": "find", "input": {"query": "q"}}
FOUND = {
    "type": "tool_search_tool_result",
    "tool_use_id": "srv1",
    "content": {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "later"}],
    },
}
# a byte each, in a form that no template writes
CALL = list(b'<tool_call>{"arguments" : {"query":"q"}, "name":"find"}</tool_call>')


@pytest.fixture
def memory() -> ReplyMemory:
    return ReplyMemory(1 << 20)


def remember(memory: ReplyMemory, prompt: Prompt, tokens: list[int], *blocks: Any) -> list[int]:
    assert prompt.origin is not None
    whole = prompt.tokens + tokens
    memory.remember(Reply(prompt.origin, array("i", tokens), blocks, path_digest(whole)))
    return whole


@pytest.mark.parametrize("source", [CHATML, CHATML_TOOLS])
def test_every_round_of_a_reply_is_put_back(source: str, memory: ReplyMemory) -> None:
    made = Renderer(template(source), ByteVocab(), Rules(), memory=memory)

    def render(*messages: tuple[str, Any]) -> Prompt:
        return made.render(request(("user", "x"), *messages, tools=TOOLS))

    first = remember(memory, render(), CALL, SentCall("srv1", "find", '{"query":"q"}'))
    second_prompt = render(("assistant", [USE, FOUND]))
    assert second_prompt.tokens[: len(first)] == first
    second = remember(memory, second_prompt, list(b"Found  it."), Text("Found  it."))
    echo = render(("assistant", [USE, FOUND, text("Found  it.")]), ("user", "y"))
    assert echo.tokens[: len(second)] == second
    assert echo.replays == {"replayed": 2}


def test_reasoning_that_was_cleared_is_not_put_back(memory: ReplyMemory) -> None:
    made = Renderer(template(CHATML), ByteVocab(), Rules(), memory=memory)

    def render(*messages: tuple[str, Any], keep: Any = "all") -> Prompt:
        edit = {"type": "clear_thinking_20251015", "keep": keep}
        asked = request(("user", "x"), *messages, context_management={"edits": [edit]})
        return made.render(asked, thinks=True)

    said = list(b"<think>hm</think>yes")
    whole = remember(memory, render(), said, Thought("hm", "s"), Text("yes"))
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    more: list[tuple[str, Any]] = [("assistant", [thought, text("yes")]), ("user", "y")]
    assert render(*more).tokens[: len(whole)] == whole
    late = [*more, ("assistant", [thought, text("no")]), ("user", "z")]
    one = {"type": "thinking_turns", "value": 1}
    cleared = render(*late, keep=one)
    assert b"<think>" not in bytes(t for t in cleared.tokens if t < 256)
    assert cleared.edits[0]["cleared_thinking_turns"] == 1
    assert render(*late).tokens[: len(whole)] == whole

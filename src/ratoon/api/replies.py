"""Remembering a reply: what was sampled, beside what the client was told."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

from ratoon.api.stream import SEARCH, ReplyStream, WireEvent, tool_input
from ratoon.chat.render import Prompt
from ratoon.engine.events import Event, Finished, Token
from ratoon.reuse.replies import (
    Reply,
    ReplyMemory,
    SentBlock,
    SentCall,
    Text,
    Thought,
    path_digest,
)


class RecordedStream:
    """A reply stream that remembers the reply when the engine, or a search, has ended it.

    One that a stop sequence, a cancel or an error ended is not kept: its tokens go further than
    its blocks, or nobody got them. Nor is one with hidden reasoning, which must not come back.
    """

    def __init__(self, stream: ReplyStream, memory: ReplyMemory, prompt: Prompt) -> None:
        self._stream = stream
        self._memory = memory
        self._prompt = prompt
        self._tokens = array("i")
        self._blocks = BlockFold()

    @property
    def stop_reason(self) -> str | None:
        return self._stream.stop_reason

    @property
    def n_output(self) -> int:
        return self._stream.n_output

    def feed(self, event: Event) -> list[WireEvent]:
        told = self._stream.feed(event)
        if isinstance(event, Token):
            self._tokens.append(event.token)
        for each in told:
            self._blocks.feed(each)
        is_whole = isinstance(event, Finished) and self.stop_reason != "stop_sequence"
        if is_whole or self.stop_reason == SEARCH:
            self._remember()
        return told

    def _remember(self) -> None:
        origin, blocks = self._prompt.origin, tuple(self._blocks.blocks)
        if origin is not None and blocks and not self._stream.hides_reasoning:
            path = path_digest([*self._prompt.tokens, *self._tokens])
            self._memory.remember(Reply(origin, self._tokens, blocks, path))


class BlockFold:
    """Adds stream events up to the blocks they tell, calls with the text of their input."""

    def __init__(self) -> None:
        self.blocks: list[SentBlock] = []
        self._block: dict[str, Any] = {}  # that is open now
        self._parts: dict[str, list[str]] = {}  # its strings, by the delta's field

    def feed(self, event: WireEvent) -> None:
        match event["type"]:
            case "content_block_start":
                self._block, self._parts = event["content_block"], {}
            case "content_block_delta":
                for name, part in event["delta"].items():
                    self._parts.setdefault(name, []).append(part)
            case "content_block_stop":
                self.blocks.append(_BLOCKS[self._block["type"]](self))

    def _string(self, name: str) -> str:
        return "".join([self._block.get(name, ""), *self._parts.get(name, ())])

    def _text(self) -> SentBlock:
        return Text(self._string("text"))

    def _thought(self) -> SentBlock:
        return Thought(self._string("thinking"), self._string("signature"))

    def _call(self) -> SentBlock:
        raw = self._string("partial_json")
        return SentCall(self._block["id"], self._block["name"], raw, _partial(raw))


def _partial(raw: str) -> dict[str, Any] | None:
    """What a whole message tells of an input that was cut off."""
    try:
        json.loads(raw or "{}")
    except ValueError:
        return tool_input(raw)
    return None


_BLOCKS: dict[str, Callable[[BlockFold], SentBlock]] = {
    "text": BlockFold._text,
    "thinking": BlockFold._thought,
    "tool_use": BlockFold._call,
    "server_tool_use": BlockFold._call,
}

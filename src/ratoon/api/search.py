"""Tool searches that the server runs itself, in the middle of a reply.

A search call ends a round: the engine stops, the found tools are appended to the conversation, and
the next round goes on in the same message. Each round's prompt is rendered like any history that
ends with the assistant, so the client's echo of the reply gives the same prompt again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from anyio import to_thread

from ratoon import wire
from ratoon.api.stream import MessageFold, ReplyHead, ReplyStream, WireEvent, closing
from ratoon.api.usage import total_usage
from ratoon.chat.search import search
from ratoon.chat.typed import Search, search_kind
from ratoon.errors import PromptTooLong

MAX_SEARCHES = 8  # in one reply; then it pauses, and goes on when the client sends it back


@dataclass(frozen=True, slots=True)
class Round:
    """One engine request's part of a reply."""

    batches: AsyncGenerator[list[WireEvent]]
    stream: ReplyStream
    searchable: Sequence[wire.Tool]


Begin = Callable[[wire.MessagesRequest, int], Awaitable[Round]]


async def with_searches(
    asked: wire.MessagesRequest, head: ReplyHead, first: Round, begin: Begin
) -> AsyncGenerator[list[WireEvent]]:
    """The reply's events, round after round. ``begin`` starts the round of a given number."""
    kinds = search_tools(asked)
    splice = Splice(kinds, head)
    part = first
    while True:
        async with aclosing(part.batches):
            async for batch in part.batches:
                events = splice.feed(batch)
                if splice.is_round_over:
                    part.stream.stop_reason = part.stream.stop_reason or "tool_search"
                if events:
                    yield events
        call = splice.close_round(part.stream.n_output)
        n_left = asked.max_tokens - splice.n_output
        if call is None or n_left < 1:
            if last := splice.end("tool_use" if call is None else "max_tokens"):
                yield last
            return
        yield splice.answer(await to_thread.run_sync(_run, kinds[call["name"]], call, part))
        if splice.n_searches == MAX_SEARCHES:
            yield splice.end("pause_turn")
            return
        try:
            part = await begin(continued(asked, splice.content, n_left), splice.n_searches)
        except PromptTooLong:
            yield splice.end("model_context_window_exceeded")
            return


def search_tools(asked: wire.CountTokensRequest) -> dict[str, Search]:
    """The search tools of a request: name → how it searches."""
    kinds = ((tool.name, search_kind(tool)) for tool in asked.tools or ())
    return {name: kind for name, kind in kinds if kind is not None}


def continued(
    asked: wire.MessagesRequest, content: list[dict[str, Any]], n_left: int
) -> wire.MessagesRequest:
    """The request whose reply goes on where this content ends."""
    *before, last = asked.messages
    said = wire.Message.model_validate({"role": "assistant", "content": content})
    messages = (
        [*before, _joined(last, said)] if last.role == "assistant" else [*asked.messages, said]
    )
    return asked.model_copy(update={"messages": messages, "max_tokens": n_left})


def _joined(opening: wire.Message, said: wire.Message) -> wire.Message:
    """A text that the client began, and how it went on."""
    text, rest = opening.content, list(said.content)
    head = text if isinstance(text, list) else [wire.TextBlock(type="text", text=text)]
    if head and isinstance(head[-1], wire.TextBlock) and isinstance(rest[0], wire.TextBlock):
        whole = head[-1].model_copy(update={"text": head[-1].text + rest[0].text})
        head, rest = [*head[:-1], whole], rest[1:]
    return opening.model_copy(update={"content": [*head, *rest]})


def _run(kind: Search, call: dict[str, Any], part: Round) -> dict[str, Any]:
    """The block that answers a call. On a worker thread: a catalogue may be large."""
    found = search(kind, call["input"], part.searchable)
    return {
        "type": "tool_search_tool_result",
        "tool_use_id": call["id"],
        "content": found.model_dump(exclude_none=True),
    }


@dataclass(slots=True)
class Splice:
    """Joins the stream events of several rounds to those of one message. Pure.

    A search ends its round as soon as its call is whole. One that follows a call of the client's in
    the same round is not run: the reply ends before it, for the client's results come first.
    """

    searches: Mapping[str, Search]
    head: ReplyHead
    n_searches: int = 0
    n_output: int = 0
    is_round_over: bool = False
    _fold: MessageFold = field(default_factory=MessageFold)
    _offset: int = 0  # blocks of earlier rounds
    _is_searching: bool = False  # the block that is open now is a search
    _has_call: bool = False  # this round calls a tool of the client
    _call: dict[str, Any] | None = None
    _usage: wire.Usage | None = None  # of this round
    _rounds: list[wire.Usage] = field(default_factory=list)
    _has_ended: bool = False

    @property
    def content(self) -> list[dict[str, Any]]:
        """The message's blocks so far."""
        blocks: list[dict[str, Any]] = self._fold.message["content"]
        return blocks

    def feed(self, batch: list[WireEvent]) -> list[WireEvent]:
        """One round's next events as events of the whole message."""
        return [out for event in batch if (out := self._feed(event, batch)) is not None]

    def _feed(self, event: WireEvent, batch: list[WireEvent]) -> WireEvent | None:
        if self.is_round_over:
            return None
        kind = event["type"]
        if kind == "message_start":
            return self._start(event)
        if kind == "content_block_start":
            event = self._open(event)
            if self.is_round_over:
                return None
        if kind == "message_delta":
            self._has_ended = True
            last = wire.Usage.model_validate(event["usage"])
            event = {**event, "usage": self._total([*self._rounds, last])}
        if "index" in event:
            event = {**event, "index": event["index"] + self._offset}
        self._fold.feed(event)
        if kind == "content_block_stop" and self._is_searching:
            self._is_searching = False
            if not any(_is_cut(other) for other in batch):
                self._call, self.is_round_over = self.content[-1], True
        return event

    def _start(self, event: WireEvent) -> WireEvent | None:
        self._usage = wire.Usage.model_validate(event["message"]["usage"])
        if self._fold.message:
            return None
        self._fold.feed(event)
        return event

    def _open(self, event: WireEvent) -> WireEvent:
        block = event["content_block"]
        if block["type"] != "tool_use":
            return event
        if block["name"] not in self.searches:
            self._has_call = True
            return event
        if self._has_call:
            self.is_round_over = True
            return event
        self._is_searching = True
        block = {**block, "type": "server_tool_use", "id": f"srv{block['id']}"}
        return {**event, "content_block": block}

    def close_round(self, n_output: int) -> dict[str, Any] | None:
        """The round is over; the search it ended with, if any."""
        if self._usage is not None:
            self._rounds.append(self._usage.model_copy(update={"output_tokens": n_output}))
        self.n_output += n_output
        self._offset = len(self.content)
        call, self._call = self._call, None
        self.is_round_over = self._has_call = False
        return call

    def answer(self, block: dict[str, Any]) -> list[WireEvent]:
        """The events of a search's result."""
        self.n_searches += 1
        events: list[WireEvent] = [
            {"type": "content_block_start", "index": self._offset, "content_block": block},
            {"type": "content_block_stop", "index": self._offset},
        ]
        for event in events:
            self._fold.feed(event)
        self._offset += 1
        return events

    def end(self, stop_reason: str) -> list[WireEvent]:
        """The events that end the message here, unless a round has ended it."""
        if self._has_ended:
            return []
        return closing(stop_reason, None, self._total(self._rounds), self.head)

    def _total(self, rounds: list[wire.Usage]) -> dict[str, Any]:
        is_plain = len(rounds) == 1 and not self.n_searches
        usage = rounds[0] if is_plain else total_usage(rounds, self.n_searches)
        return usage.model_dump()


def _is_cut(event: WireEvent) -> bool:
    """Whether the reply ended here for another reason than its own."""
    return event["type"] == "message_delta" and bool(event["delta"]["stop_reason"] != "tool_use")

"""Tool searches that the server runs itself, in the middle of a reply.

A search call ends a round: the engine stops, the found tools are appended to the conversation, and
the next round goes on in the same message. Each round's prompt is rendered like any history that
ends with the assistant, so the client's echo of the reply gives the same prompt again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from anyio import to_thread

from ratoon import wire
from ratoon.api.replies import RecordedStream
from ratoon.api.stream import SEARCH, MessageFold, ReplyHead, ReplyStream, WireEvent, closing
from ratoon.api.usage import total_usage
from ratoon.chat.search import search
from ratoon.chat.typed import Search, search_kind
from ratoon.errors import PromptTooLong

MAX_SEARCHES = 8  # in one reply; then it pauses, and goes on when the client sends it back


@dataclass(frozen=True, slots=True)
class Round:
    """One engine request's part of a reply."""

    batches: AsyncGenerator[list[WireEvent]]
    stream: ReplyStream | RecordedStream
    searchable: Sequence[wire.Tool]


Begin = Callable[[wire.MessagesRequest, int], Awaitable[Round]]


async def with_searches(
    asked: wire.MessagesRequest, head: ReplyHead, first: Round, begin: Begin
) -> AsyncGenerator[list[WireEvent]]:
    """The reply's events, round after round. ``begin`` starts the round of a given number."""
    joint = Joint(head)
    part = first
    while True:
        async with aclosing(part.batches):
            async for batch in part.batches:
                if events := joint.feed(batch):
                    yield events
        if part.stream.stop_reason != SEARCH:
            return
        joint.close_round(part.stream.n_output)
        n_left = asked.max_tokens - joint.n_output
        if n_left < 1:
            yield joint.end("max_tokens")
            return
        yield joint.answer(await to_thread.run_sync(_run, head.searches, joint.content[-1], part))
        if joint.n_searches == MAX_SEARCHES:
            yield joint.end("pause_turn")
            return
        try:
            part = await begin(continued(asked, joint.content, n_left), joint.n_searches)
        except PromptTooLong:
            yield joint.end("model_context_window_exceeded")
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


def _run(kinds: Mapping[str, Search], call: dict[str, Any], part: Round) -> dict[str, Any]:
    """The block that answers a call. On a worker thread: a catalogue may be large."""
    found = search(kinds[call["name"]], call["input"], part.searchable)
    return {
        "type": "tool_search_tool_result",
        "tool_use_id": call["id"],
        "content": found.model_dump(exclude_none=True),
    }


class Joint:
    """Joins the stream events of several rounds to those of one message. Pure."""

    def __init__(self, head: ReplyHead) -> None:
        self.n_searches = 0
        self.n_output = 0
        self._head = head
        self._fold = MessageFold()
        self._n_before = 0  # blocks of earlier rounds
        self._usage: wire.Usage | None = None  # of this round
        self._rounds: list[wire.Usage] = []

    @property
    def content(self) -> list[dict[str, Any]]:
        """The message's blocks so far."""
        blocks: list[dict[str, Any]] = self._fold.message["content"]
        return blocks

    def feed(self, batch: list[WireEvent]) -> list[WireEvent]:
        """One round's next events as events of the whole message."""
        return [told for event in batch if (told := self._feed(event)) is not None]

    def _feed(self, event: WireEvent) -> WireEvent | None:
        if event["type"] == "message_start":
            self._usage = wire.Usage.model_validate(event["message"]["usage"])
            if self._fold.message:
                return None
        if event["type"] == "message_delta":
            last = wire.Usage.model_validate(event["usage"])
            event = {**event, "usage": self._total([*self._rounds, last])}
        if "index" in event:
            event = {**event, "index": event["index"] + self._n_before}
        self._fold.feed(event)
        return event

    def close_round(self, n_output: int) -> None:
        """A search has ended the round, after so many tokens."""
        if self._usage is not None:
            self._rounds.append(self._usage.model_copy(update={"output_tokens": n_output}))
        self.n_output += n_output
        self._n_before = len(self.content)

    def answer(self, block: dict[str, Any]) -> list[WireEvent]:
        """The events of a search's result."""
        self.n_searches += 1
        events: list[WireEvent] = [
            {"type": "content_block_start", "index": self._n_before, "content_block": block},
            {"type": "content_block_stop", "index": self._n_before},
        ]
        for event in events:
            self._fold.feed(event)
        self._n_before += 1
        return events

    def end(self, stop_reason: str) -> list[WireEvent]:
        """The events that end the message between two rounds."""
        return closing(stop_reason, None, self._total(self._rounds), self._head)

    def _total(self, rounds: list[wire.Usage]) -> dict[str, Any]:
        is_plain = len(rounds) == 1 and not self.n_searches
        usage = rounds[0] if is_plain else total_usage(rounds, self.n_searches)
        return usage.model_dump()

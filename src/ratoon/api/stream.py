"""Engine events to Anthropic stream events: a pure state machine, and its fold to one message.

A reply is always produced as stream events; a reply that is not streamed is their fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, assert_never

from pydantic_core import from_json

from ratoon.api.think import Display, Signer
from ratoon.api.usage import usage_of
from ratoon.chat.parser import Delta, TextDelta, ThinkingDelta, ToolEnd, ToolInput, ToolStart
from ratoon.chat.typed import Search
from ratoon.engine.events import Event, Failed, Finished, FinishReason, Scored, Started, Token
from ratoon.errors import InternalError

WireEvent = dict[str, Any]

PING: WireEvent = {"type": "ping"}
SEARCH = "tool_search"  # a stop reason that no client sees

_STOP_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "model_context_window_exceeded",
}


_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "input_json_delta": "partial_json",
}


class Parser(Protocol):
    """Splits a reply's bytes into deltas; ``stopped`` is the stop sequence that ended it."""

    @property
    def stopped(self) -> str | None: ...

    def feed(self, piece: bytes) -> list[Delta]: ...

    def finish(self) -> list[Delta]: ...


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What is known of a reply before it starts.

    ``is_clamped``: the window, not the client, set the reply's limit. ``display``: how much of its
    reasoning is sent; ``sign`` makes the signature of that. ``searches``: the tools that the
    server runs itself. ``edits``: the context edits that took effect, None if none were asked
    for. ``diagnostics``: as the API answers them.
    """

    message_id: str
    model: str
    boundaries: tuple[int, ...] = ()
    has_marks: bool = False
    is_clamped: bool = False
    display: Display = "hidden"
    sign: Callable[[str], str] = Signer().sign
    searches: Mapping[str, Search] = field(default_factory=dict)
    edits: Sequence[dict[str, Any]] | None = None
    diagnostics: dict[str, Any] | None = None

    @property
    def context_management(self) -> dict[str, Any] | None:
        return None if self.edits is None else {"applied_edits": list(self.edits)}


class ReplyStream:
    """Feed engine events in order; each gives the stream events it causes.

    After ``stop_reason`` is set the message is complete: feed nothing more. It is ``SEARCH`` where
    the message only rests until a search that it ends with is answered.
    """

    def __init__(self, head: ReplyHead, parser: Parser) -> None:
        self.stop_reason: str | None = None
        self.n_output = 0
        self.hides_reasoning = False  # the reply has some that the client does not get to know of
        self._head = head
        self._parser = parser
        self._usage = usage_of(0, 0, (), False)
        self._n_blocks = 0
        self._open: str | None = None  # type of the block that is open now
        self._has_tool = False
        self._is_searching = False  # the block that is open now is a search
        self._thought: list[str] = []  # of the thinking block that is open now

    def feed(self, event: Event) -> list[WireEvent]:
        """Raises the error of a failed request: the edge decides how the client hears of it."""
        match event:
            case Started():
                return self._start(event)
            case Token():
                return self._token(event)
            case Finished():
                return self._finish(event)
            case Failed():
                raise event.error
            case Scored():
                return []  # of a request that asks for no reply
            case _:
                assert_never(event)

    def _start(self, event: Started) -> list[WireEvent]:
        head = self._head
        self._usage = usage_of(event.n_prompt, event.n_cached, head.boundaries, head.has_marks)
        message: dict[str, Any] = {
            "id": head.message_id,
            "type": "message",
            "role": "assistant",
            "model": head.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "context_management": head.context_management,
            "diagnostics": head.diagnostics,
            "usage": self._usage.model_dump(),
        }
        return [{"type": "message_start", "message": message}, PING]

    def _token(self, event: Token) -> list[WireEvent]:
        self.n_output += 1
        events = self._deltas(self._parser.feed(event.piece))
        if self._parser.stopped is not None and self.stop_reason is None:
            events += self._deltas(self._parser.finish())
            events += self._end("stop_sequence")
        return events

    def _finish(self, event: Finished) -> list[WireEvent]:
        if event.reason is FinishReason.CANCELLED:
            raise InternalError("The request was cancelled by the server.")
        self.n_output = event.n_output
        events = self._deltas(self._parser.finish())
        is_cut = event.reason is not FinishReason.STOP
        if self.stop_reason is not None and not (self.stop_reason == SEARCH and is_cut):
            return events
        return events + self._end(self._reason(event.reason))

    def _reason(self, reason: FinishReason) -> str:
        if self._parser.stopped is not None:
            return "stop_sequence"
        if reason is FinishReason.STOP and self._has_tool:
            return "tool_use"
        if reason is FinishReason.LENGTH and self._head.is_clamped:
            reason = FinishReason.CONTEXT
        return _STOP_REASONS[reason]

    def _end(self, stop_reason: str) -> list[WireEvent]:
        self.stop_reason = stop_reason
        usage = self._usage.model_copy(update={"output_tokens": self.n_output})
        ending = closing(stop_reason, self._parser.stopped, usage.model_dump(), self._head)
        return [*self._close_block(), *ending]

    def _deltas(self, deltas: list[Delta]) -> list[WireEvent]:
        """Nothing of what follows the end is told."""
        events: list[WireEvent] = []
        for delta in deltas:
            if self.stop_reason is None:
                events += self._delta(delta)
        return events

    def _delta(self, delta: Delta) -> list[WireEvent]:
        match delta:
            case TextDelta():
                return self._text(delta.text)
            case ThinkingDelta():
                return self._thinking(delta.text)
            case ToolStart():
                return self._call(delta)
            case ToolInput():
                part = {"type": "input_json_delta", "partial_json": delta.partial_json}
                return [self._block_delta(part)]
            case ToolEnd():
                if self._is_searching:
                    self._is_searching, self.stop_reason = False, SEARCH
                return self._close_block()
            case _:
                assert_never(delta)

    def _call(self, delta: ToolStart) -> list[WireEvent]:
        """A search ends the reply for now. One behind a call of the client is not made, and the
        reply ends before it, for the client's results come first."""
        block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
        if delta.name not in self._head.searches:
            self._has_tool = True
            return self._open_block(block)
        if self._has_tool:
            return self._end("tool_use")
        self._is_searching = True
        return self._open_block({**block, "type": "server_tool_use", "id": f"srv{delta.id}"})

    def _text(self, text: str) -> list[WireEvent]:
        if not text:
            return []
        is_new = self._open != "text"
        opening = self._open_block({"type": "text", "text": ""}) if is_new else []
        return [*opening, self._block_delta({"type": "text_delta", "text": text})]

    def _thinking(self, text: str) -> list[WireEvent]:
        display = self._head.display
        if display == "hidden":
            self.hides_reasoning = True
            return []
        is_new = self._open != "thinking"
        block = {"type": "thinking", "thinking": "", "signature": ""}
        events = self._open_block(block) if is_new else []
        self._thought.append(text)
        if display == "shown":
            events.append(self._block_delta({"type": "thinking_delta", "thinking": text}))
        return events

    def _open_block(self, block: dict[str, Any]) -> list[WireEvent]:
        end = self._close_block()
        start = {"type": "content_block_start", "index": self._n_blocks, "content_block": block}
        self._open = block["type"]
        self._n_blocks += 1
        return [*end, start]

    def _block_delta(self, delta: dict[str, Any]) -> WireEvent:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _close_block(self) -> list[WireEvent]:
        if self._open is None:
            return []
        events: list[WireEvent] = []
        if self._open == "thinking":
            signature = self._head.sign("".join(self._thought))
            events.append(self._block_delta({"type": "signature_delta", "signature": signature}))
            self._thought = []
        self._open = None
        return [*events, {"type": "content_block_stop", "index": self._n_blocks - 1}]


def closing(
    stop_reason: str, stop_sequence: str | None, usage: dict[str, Any], head: ReplyHead
) -> list[WireEvent]:
    """The last events of a message."""
    delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    end: WireEvent = {"type": "message_delta", "delta": delta, "usage": usage}
    if head.edits is not None:
        end["context_management"] = head.context_management
    return [end, {"type": "message_stop"}]


def joined(events: Sequence[WireEvent]) -> list[WireEvent]:
    """The same with one delta in place of several of one kind that follow each other: what comes
    together costs a client, and the loop, as little as one token."""
    found: list[WireEvent] = []
    for event in events:
        name = _field(event)
        if name is None or not found or _field(found[-1]) != name:
            found.append(event)
            continue
        text = found[-1]["delta"][name] + event["delta"][name]
        found[-1] = {**event, "delta": {**event["delta"], name: text}}
    return found


def _field(event: WireEvent) -> str | None:
    """That holds the text of a delta; None: the event tells none."""
    delta = event.get("delta", {})
    return _DELTA_FIELDS.get(delta.get("type", ""))


class MessageFold:
    """Adds stream events up to the message they tell."""

    def __init__(self) -> None:
        self.message: dict[str, Any] = {}
        self._parts: list[str] = []  # of the block that is open now

    def feed(self, event: WireEvent) -> None:
        match event["type"]:
            case "message_start":
                self.message = dict(event["message"], content=[])
            case "content_block_start":
                self.message["content"].append(dict(event["content_block"]))
                self._parts = []
            case "content_block_delta":
                self._add(event["delta"])
            case "content_block_stop":
                self._fill(self.message["content"][-1], "".join(self._parts))
            case "message_delta":
                self.message.update(event["delta"], usage=event["usage"])

    def _add(self, delta: dict[str, Any]) -> None:
        if delta["type"] == "signature_delta":
            self.message["content"][-1]["signature"] = delta["signature"]
        else:
            self._parts.append(delta[_DELTA_FIELDS[delta["type"]]])

    @staticmethod
    def _fill(block: dict[str, Any], whole: str) -> None:
        if "input" in block:
            block["input"] = tool_input(whole)
        elif block["type"] in block:
            block[block["type"]] = whole  # the field of a text or thinking block has its name


def tool_input(text: str) -> dict[str, Any]:
    """A call cut off by the token limit keeps what was said, as a streaming client reads it."""
    try:
        value = from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

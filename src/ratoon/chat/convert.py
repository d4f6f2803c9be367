"""A normalised conversation as template messages, in the shapes the template takes.

Every client string passes the guard here, once; all text that is added around it is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ratoon import wire
from ratoon.chat import tools
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect
from ratoon.chat.late import SEPARATOR, LateForm, reminder
from ratoon.chat.normalise import Conversation, Turn
from ratoon.chat.replay import Context, Replayer, Splice
from ratoon.chat.template import ChatTemplate, Message
from ratoon.chat.tokens import Guard
from ratoon.errors import InvalidRequest

_ERROR = "Error: "


@dataclass(frozen=True, slots=True)
class Entry:
    """One template message; ``is_marked`` where the client asked to cache up to here. With a
    ``splice`` it only shows a mark, for the tokens that were sampled."""

    message: Message
    is_marked: bool
    splice: Splice | None = None


class Converter:
    """Turns the turns of one request into entries. ``context`` digests the entries so far, after
    what it held before."""

    def __init__(
        self,
        template: ChatTemplate,
        guard: Guard,
        dialect: Dialect,
        late_form: LateForm | None,
        context: Context,
        replayer: Replayer,
    ) -> None:
        self._template = template
        self._guard = guard
        self._dialect = dialect
        self._late_form = late_form
        self._context = context
        self._replayer = replayer
        self._calls: dict[str, tuple[str, str]] = {}

    def entries(self, conversation: Conversation) -> list[Entry]:
        found: list[Entry] = []
        last = len(conversation.turns) - 1
        for position, turn in enumerate(conversation.turns):
            is_late = position >= conversation.n_head
            # The reply to come continues a final assistant's turn, which is not whole then.
            replayed = self._replayed(turn) if position < last else None
            entries = replayed or _SHAPES[turn.role](self, turn, is_late)
            for entry in entries:
                self._add_to_context(entry)
                found.append(entry)
        return found if self._template.takes_parallel_calls else _paired(found)

    def _add_to_context(self, entry: Entry) -> None:
        if entry.splice is not None:
            self._context.add_tokens(entry.splice.reply.tokens)
        else:
            self._context.add(entry.message)

    def _replayed(self, turn: Turn) -> list[Entry] | None:
        """The entry of a turn that echoes a remembered reply."""
        if turn.role != "assistant":
            return None
        calls = [block for block in turn.blocks if isinstance(block, wire.ToolUseBlock)]
        is_native = bool(calls) and self._renders_calls
        template, mark = self._template, self._guard.splice
        has_place = not is_native or template.takes_lone_results or template.takes_stubs
        reply = self._replayer.find(turn, self._context.digest, has_place=has_place)
        if reply is None:
            return None
        # Results refer to their calls, whether these are shown or not.
        made = [self._call(call) for call in calls]
        is_marked = any(_is_marked(block) for block in turn.blocks)
        if not is_native or template.takes_lone_results:
            return [Entry({"role": "assistant", "content": mark}, is_marked, Splice(reply))]
        id, name = made[-1]["id"], made[-1]["function"]["name"]
        stub = template.stub_call(id, name, mark)
        return [Entry(stub, is_marked, Splice(reply, template.stub_end(id)))]

    def _system(self, turn: Turn, is_late: bool) -> Iterator[Entry]:
        text = SEPARATOR.join(self._text(block, turn) for block in turn.blocks)
        message = {"role": "system", "content": text}
        if is_late and not self._template.takes_late_system:
            mark = self._guard.late_mark
            content = f"{mark}{text}{mark}" if self._late_form else reminder(text)
            message = {"role": "user", "content": content}
        yield Entry(message, any(_is_marked(block) for block in turn.blocks))

    def _user(self, turn: Turn, _is_late: bool) -> Iterator[Entry]:
        texts: list[wire.ContentBlock] = []
        for block in turn.blocks:
            if isinstance(block, wire.ToolResultBlock):
                yield from self._user_text(texts, turn)
                texts = []
                yield Entry(self._result(block), _is_marked(block))
            else:
                texts.append(block)
        yield from self._user_text(texts, turn)

    def _user_text(self, blocks: Sequence[wire.ContentBlock], turn: Turn) -> Iterator[Entry]:
        if blocks:
            text = SEPARATOR.join(self._text(block, turn) for block in blocks)
            marked = any(_is_marked(block) for block in blocks)
            yield Entry({"role": "user", "content": text}, marked)

    def _assistant(self, turn: Turn, _is_late: bool) -> Iterator[Entry]:
        """Reasoning is left out: it would have to be byte-identical to what was sampled."""
        blocks = [block for block in turn.blocks if not isinstance(block, _REASONING)]
        calls = [block for block in blocks if isinstance(block, wire.ToolUseBlock)]
        texts = [
            self._text(block, turn) for block in blocks if not isinstance(block, wire.ToolUseBlock)
        ]
        if not blocks:
            return
        is_marked = any(_is_marked(block) for block in blocks)
        *earlier, last = self._messages(SEPARATOR.join(texts), calls)
        yield from (Entry(message, False) for message in earlier)
        yield Entry(last, is_marked)

    def _messages(self, text: str, calls: Sequence[wire.ToolUseBlock]) -> list[Message]:
        """A message for the text and the calls, or several where the template can't have it."""
        template = self._template
        message: Message = {"role": "assistant", "content": text}
        if not calls:
            return [message]
        made = [self._call(call) for call in calls]
        if not self._renders_calls:
            write = self._dialect.write or hermes.write
            written = write([(call.name, call.input) for call in map(self._guarded, calls)])
            return [{**message, "content": "\n".join(filter(None, (text, written)))}]
        groups = [made] if template.takes_parallel_calls else [[call] for call in made]
        callers = [{**message, "content": "", "tool_calls": group} for group in groups]
        if text and not template.keeps_text_of_calls:
            return [message, *callers]
        return [{**callers[0], "content": text}, *callers[1:]]

    @property
    def _renders_calls(self) -> bool:
        return self._template.takes_tools and self._template.renders_tool_calls

    def _guarded(self, call: wire.ToolUseBlock) -> wire.ToolUseBlock:
        guard = self._guard
        return call.model_copy(
            update={"name": guard.text(call.name), "input": guard.value(call.input)}
        )

    def _call(self, call: wire.ToolUseBlock) -> dict[str, Any]:
        """A call under an id of its position: the client's id is not prompt text."""
        guarded = self._guarded(call)
        id = self._dialect.call_id.format(name=guarded.name, n=len(self._calls))
        self._calls[call.id] = (id, guarded.name)
        arguments: Any = guarded.input
        if self._template.wants_string_arguments:
            arguments = tools.to_json(arguments)
        return {
            "id": id,
            "type": "function",
            "function": {"name": guarded.name, "arguments": arguments},
        }

    def _result(self, block: wire.ToolResultBlock) -> Message:
        text = self._result_text(block)
        call = self._calls.get(block.tool_use_id)
        # Strict templates refuse a result whose call they did not render.
        is_native = self._template.takes_tools and self._template.takes_tool_role
        if call is None or not is_native:
            return {"role": "user", "content": tools.result_text(text)}
        id, name = call
        return {"role": "tool", "content": text, "name": name, "tool_call_id": id}

    def _result_text(self, block: wire.ToolResultBlock) -> str:
        content = block.content
        if isinstance(content, str):
            text = self._guard.text(content)
        else:
            parts = [self._plain(part) for part in content or ()]
            text = SEPARATOR.join(part for part in parts if part)
        return _ERROR + text if block.is_error and not text.startswith(_ERROR) else text

    def _text(self, block: wire.ContentBlock, turn: Turn) -> str:
        """A block that must be text here."""
        if isinstance(block, wire.ToolUseBlock | wire.ToolResultBlock | _REASONING):
            raise InvalidRequest(
                f"messages.{turn.index}: {block.type} blocks are not allowed "
                f"in messages of role {turn.role}"
            )
        return self._plain(block)

    def _plain(self, block: _PlainBlock) -> str:
        match block:
            case wire.TextBlock():
                return self._guard.text(block.text)
            case wire.ToolReferenceBlock():
                return f"Tool available: {self._guard.text(block.tool_name)}"
            case wire.DocumentBlock():
                return self._guard.text(_document(block))
            case wire.ImageBlock():
                raise InvalidRequest("messages: image blocks are not supported by this model")


_PlainBlock = wire.TextBlock | wire.ToolReferenceBlock | wire.DocumentBlock | wire.ImageBlock
_REASONING = wire.ThinkingBlock | wire.RedactedThinkingBlock
_SHAPES = {
    "system": Converter._system,
    "user": Converter._user,
    "assistant": Converter._assistant,
}


def _paired(entries: list[Entry]) -> list[Entry]:
    """Each result directly behind its own call, for a template of one call a message."""
    found: list[Entry] = []
    for entry in entries:
        callers = (n for n in range(len(found), 0, -1) if _answers(entry, found[n - 1]))
        at = next(callers, len(found))
        while at < len(found) and found[at].message["role"] == "tool":
            at += 1
        found.insert(at, entry)
    return found


def _answers(result: Entry, entry: Entry) -> bool:
    calls = entry.message.get("tool_calls", ())
    return any(call["id"] == result.message.get("tool_call_id") for call in calls)


def _document(block: wire.DocumentBlock) -> str:
    data = block.source.get("data")
    if block.source.get("type") != "text" or not isinstance(data, str):
        raise InvalidRequest("messages: documents other than text are not supported by this model")
    return SEPARATOR.join(filter(None, (block.title, data)))


def _is_marked(block: wire.ContentBlock) -> bool:
    return getattr(block, "cache_control", None) is not None

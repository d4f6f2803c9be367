"""A normalised conversation as template messages, in the shapes the template takes.

Every client string passes the guard here, once; all text that is added around it is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from ratoon import wire
from ratoon.chat import tools
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect
from ratoon.chat.late import SEPARATOR, LateForm, reminder
from ratoon.chat.normalise import Conversation, Turn
from ratoon.chat.plain import document_text, foreign_text, search_result_text
from ratoon.chat.replay import Context, Replayer, Splice
from ratoon.chat.template import ChatTemplate, Message
from ratoon.chat.tokens import Guard

_ERROR = "Error: "
_NOTHING = "No tools found."
_IMAGE = "[An image, which this model can't see.]"


@dataclass(frozen=True, slots=True)
class Entry:
    """One template message; ``is_marked`` where the client asked to cache up to here. With a
    ``splice`` it only shows a mark, for the tokens that were sampled."""

    message: Message
    is_marked: bool
    splice: Splice | None = None


class Converter:
    """Turns the turns of one request into entries, and loads the tools they refer to. ``context``
    digests the entries so far, after what it held before."""

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
        self._toolbox = replayer.toolbox
        self._is_taught = template.takes_tools or bool(self._toolbox.head)
        self._late_form = late_form
        self._context = context
        self._replayer = replayer
        self._calls: dict[str, tuple[str, str]] = {}

    def entries(self, conversation: Conversation) -> list[Entry]:
        found: list[Entry] = []
        turns = conversation.turns
        parts = [(i, part) for i, turn in enumerate(turns) for part in _rounds(turn)]
        for n_done, (position, turn) in enumerate(parts, 1):
            is_late = position >= conversation.n_head
            # The reply to come continues a final assistant's turn, which is not whole then.
            replayed = self._replayed(turn) if n_done < len(parts) else None
            entries = replayed or _SHAPES[turn.role](self, turn, is_late)
            for entry in entries:
                self._add_to_context(entry)
                found.append(entry)
        is_single = self._renders_calls and not self._template.takes_parallel_calls
        return _paired(found) if is_single else found

    def _add_to_context(self, entry: Entry) -> None:
        if entry.splice is not None:
            self._context.add_tokens(entry.splice.reply.tokens)
        else:
            self._context.add(entry.message)

    def _replayed(self, turn: Turn) -> list[Entry] | None:
        """The entry of a turn that echoes a remembered reply."""
        if turn.role != "assistant" or isinstance(turn.blocks[0], _ANSWER):
            return None
        calls = [block for block in turn.blocks if isinstance(block, _CALL)]
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
        text = self._joined(turn.blocks)
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
                yield from self._user_text(texts)
                texts = []
                yield Entry(self._result(block), _is_marked(block))
            else:
                texts.append(block)
        yield from self._user_text(texts)

    def _user_text(self, blocks: Sequence[wire.ContentBlock]) -> Iterator[Entry]:
        if text := self._joined(blocks):
            marked = any(_is_marked(block) for block in blocks)
            yield Entry({"role": "user", "content": text}, marked)

    def _assistant(self, turn: Turn, _is_late: bool) -> Iterator[Entry]:
        """Reasoning is left out: it would have to be byte-identical to what was sampled."""
        if isinstance(turn.blocks[0], _ANSWER):
            yield Entry(self._result(turn.blocks[0]), _is_marked(turn.blocks[0]))
            return
        blocks = [block for block in turn.blocks if not isinstance(block, _UNSAID)]
        calls = [block for block in blocks if isinstance(block, _CALL)]
        texts = [self._plain(block) for block in blocks if not isinstance(block, _CALL)]
        texts = [text for text in texts if text]
        if not texts and not calls:
            return
        is_marked = any(_is_marked(block) for block in blocks)
        *earlier, last = self._messages(SEPARATOR.join(texts), calls)
        yield from (Entry(message, False) for message in earlier)
        yield Entry(last, is_marked)

    def _messages(self, text: str, calls: Sequence[_Call]) -> list[Message]:
        """A message for the text and the calls, or several where the template can't have it."""
        template = self._template
        message: Message = {"role": "assistant", "content": text}
        if not calls:
            return [message]
        made = [self._call(call) for call in calls]
        if not self._renders_calls:
            show = self._dialect.show or hermes.show
            written = show([(call.name, call.input) for call in map(self._guarded, calls)])
            return [{**message, "content": "\n".join(filter(None, (text, written)))}]
        groups = [made] if template.takes_parallel_calls else [[call] for call in made]
        callers = [{**message, "content": "", "tool_calls": group} for group in groups]
        if text and not template.keeps_text_of_calls:
            return [message, *callers]
        return [{**callers[0], "content": text}, *callers[1:]]

    @property
    def _renders_calls(self) -> bool:
        return self._template.takes_tools and self._template.renders_tool_calls

    def _guarded(self, call: _Call) -> _Call:
        guard = self._guard
        return call.model_copy(
            update={"name": guard.text(call.name), "input": guard.value(call.input)}
        )

    def _call(self, call: _Call) -> dict[str, Any]:
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

    def _result(self, block: _Result) -> Message:
        text = self._result_text(block)
        call = self._calls.get(block.tool_use_id)
        # Strict templates refuse a result whose call they did not render.
        is_native = self._template.takes_tools and self._template.takes_tool_role
        if call is None or not is_native:
            return {"role": "user", "content": tools.result_text(text)}
        id, name = call
        return {"role": "tool", "content": text, "name": name, "tool_call_id": id}

    def _result_text(self, block: _Result) -> str:
        content = block.content
        if isinstance(block, wire.ServerResultBlock):
            return self._guard.text(foreign_text(content))
        if isinstance(content, wire.FoundTools):
            return self._loaded(content.tool_references) or _NOTHING
        if isinstance(content, wire.SearchError):
            return _ERROR + self._guard.text(content.error_message or content.error_code)
        text = self._guard.text(content) if isinstance(content, str) else self._joined(content)
        is_error = isinstance(block, wire.ToolResultBlock) and block.is_error
        return _ERROR + text if is_error and not text.startswith(_ERROR) else text

    def _joined(self, blocks: Iterable[_PlainBlock] | None) -> str:
        """The blocks' texts; references that follow one another are told together."""
        parts: list[str] = []
        references: list[wire.ToolReferenceBlock] = []
        for block in blocks or ():
            if isinstance(block, wire.ToolReferenceBlock):
                references.append(block)
                continue
            parts += [self._loaded(references), self._plain(block)]
            references = []
        return SEPARATOR.join(filter(None, [*parts, self._loaded(references)]))

    def _loaded(self, references: Sequence[wire.ToolReferenceBlock]) -> str:
        """What is said where these tools are loaded."""
        new = [(block.tool_name, self._toolbox.load(block.tool_name)) for block in references]
        names = [self._guard.text(name) for name, tool in new if tool is None]
        return self._announced([tool for _, tool in new if tool], names)

    def _announced(self, new: Sequence[wire.Tool], names: Sequence[str]) -> str:
        """Definitions of tools, and names of others. The first ones of all also say how to call,
        where nothing has said it."""
        definitions = [self._guard.value(tools.definition(tool)) for tool in new]
        if definitions and not self._is_taught:
            self._is_taught = True
            return "\n".join(filter(None, [tools.section(definitions), tools.loaded([], names)]))
        return tools.loaded(definitions, names)

    def _plain(self, block: _PlainBlock) -> str:
        match block:
            case wire.ToolAdditionBlock():
                return self._added(block)
            case wire.ToolRemovalBlock():
                self._toolbox.remove(block.tool.name)
                return tools.removed(self._guard.text(block.tool.name))
            case wire.DocumentBlock():
                return self._guard.text(document_text(block))
            case wire.SearchResultBlock():
                return self._guard.text(search_result_text(block))
            case wire.CompactionBlock():
                return self._guard.text(block.content or "")
            case wire.TextBlock():
                return self._guard.text(block.text)
            case wire.ImageBlock():
                return _IMAGE
        return ""

    def _added(self, block: wire.ToolAdditionBlock) -> str:
        change = block.tool
        if isinstance(change, wire.ToolNamed):
            name, tool = change.name, self._toolbox.load(change.name)
        else:
            name = change.definition.name
            tool = self._toolbox.define(change.definition)
        return (
            self._announced([tool], []) if tool else self._announced([], [self._guard.text(name)])
        )


_Call = wire.ToolUseBlock | wire.ServerToolUseBlock
_Result = wire.ToolResultBlock | wire.ToolSearchResultBlock | wire.ServerResultBlock
_PlainBlock = wire.ContentBlock | wire.ToolReferenceBlock
_ANSWER = (wire.ToolSearchResultBlock, wire.ServerResultBlock)
_CALL = (wire.ToolUseBlock, wire.ServerToolUseBlock)
_UNSAID = (wire.ThinkingBlock, wire.RedactedThinkingBlock, wire.MarkerBlock)
_SHAPES = {
    "system": Converter._system,
    "user": Converter._user,
    "assistant": Converter._assistant,
}


def _paired(entries: list[Entry]) -> list[Entry]:
    """Each result directly behind its own call, for a template of one call a message."""
    found: list[Entry] = []
    for entry in entries:
        id = entry.message.get("tool_call_id")
        at = len(found) if id is None else _behind_call(found, id)
        found.insert(at, entry)
    return found


def _behind_call(entries: list[Entry], id: str) -> int:
    """The place behind the message with this call, and behind the results that it has."""
    for n in range(len(entries), 0, -1):
        calls = entries[n - 1].message.get("tool_calls", ())
        if any(call["id"] == id for call in calls):
            roles = (entry.message["role"] for entry in entries[n:])
            return n + sum(1 for _ in takewhile(lambda role: role == "tool", roles))
    return len(entries)


def _rounds(turn: Turn) -> Iterator[Turn]:
    """A turn's parts: a server's answer to a call stands alone, between what was said."""
    said: list[wire.ContentBlock] = []
    for block in turn.blocks:
        if not isinstance(block, _ANSWER):
            said.append(block)
            continue
        if said:
            yield replace(turn, blocks=tuple(said))
        yield replace(turn, blocks=(block,))
        said = []
    if said:
        yield replace(turn, blocks=tuple(said))


def _is_marked(block: wire.ContentBlock) -> bool:
    return getattr(block, "cache_control", None) is not None

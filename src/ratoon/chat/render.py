"""From a request to its prompt: tokens, and the offsets where a saved state pays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ratoon import wire
from ratoon.chat import tools
from ratoon.chat.arrange import arrange
from ratoon.chat.check import check_blocks
from ratoon.chat.convert import Converter, Entry
from ratoon.chat.edits import Applied, apply_edits
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Tools
from ratoon.chat.late import SEPARATOR, LateForm, find_late_form
from ratoon.chat.native import settle
from ratoon.chat.normalise import Conversation, Rules, normalise
from ratoon.chat.outline import Outline, outline
from ratoon.chat.replay import Context, Replayer, Splice, origin_of, put_back
from ratoon.chat.template import ChatTemplate, Message
from ratoon.chat.thinking import Reasoning, ThinkMode, think_modes
from ratoon.chat.tokens import Guard, Markup, PromptTokenizer, Splices
from ratoon.chat.toolbox import Toolbox
from ratoon.chat.vocab import Vocab
from ratoon.errors import InvalidRequest
from ratoon.reuse.replies import Origin, Outcome, ReplyMemory

# Anthropic allows four; a client that sends more pays no more than this many extra renders.
_MAX_MARKS = 8


@dataclass(frozen=True, slots=True)
class Prompt:
    """``boundaries``: ascending token offsets, each below ``len(tokens)``, worth a saved state.
    ``fired``: how often each rule changed something. ``has_late_run``: system messages follow
    the first user message directly, so that hoisting them makes a difference. ``dialect`` and
    ``schemas`` tell how to read calls in the reply; ``schemas`` holds the tools that may be called
    now. ``reasoning`` is None where the reply can't begin with any; ``thinks``: it was asked for.
    ``origin`` tells where the reply is sampled, None where it continues a text; ``replays`` counts
    what became of the replies that the request echoes. ``searchable``: the tools that a search may
    find. ``edits``: the context edits that took effect. ``outline``: digests of the parts."""

    tokens: list[int]
    boundaries: tuple[int, ...]
    fired: Mapping[str, int]
    has_late_run: bool
    parses_tools: bool
    text_len: int
    dialect: Dialect = hermes.DIALECT
    schemas: Tools = field(default_factory=dict)
    reasoning: Reasoning | None = None
    thinks: bool = False
    origin: Origin | None = None
    replays: Mapping[str, int] = field(default_factory=dict)
    searchable: Sequence[wire.Tool] = ()
    edits: Sequence[Applied] = ()
    outline: Outline = field(default_factory=Outline)


class Renderer:
    """Renders requests for one model. Equal normalised conversations give equal tokens, as long
    as the same of their replies are in the ``memory``.

    Without a ``dialect`` the template tells how the model writes calls. Without a memory every
    reply is rendered as the client wrote it.
    """

    def __init__(
        self,
        template: ChatTemplate,
        vocab: Vocab,
        rules: Rules,
        dialect: Dialect | None = None,
        memory: ReplyMemory | None = None,
    ) -> None:
        self._template, self._dialect = settle(template, dialect)
        self._rules = rules
        self._memory = memory
        self._markup = Markup(vocab, template.source)
        self._tokenizer = PromptTokenizer(vocab, self._markup)
        self._think_modes = self._safe(think_modes(template))
        self._late_form = find_late_form(template)

    def _safe(self, modes: dict[bool, ThinkMode]) -> dict[bool, ThinkMode]:
        """Modes that no client text can set off."""
        return {
            thinks: mode if self._markup.any.search(mode.header) else replace(mode, header="")
            for thinks, mode in modes.items()
        }

    def render(
        self, request: wire.CountTokensRequest, *, hoist: bool = True, thinks: bool = False
    ) -> Prompt:
        """Raises InvalidRequest for what the model or its template can't take."""
        conversation = normalise(request, self._rules, hoist=hoist)
        _check(request, conversation)
        conversation, applied = self._edited(request, conversation)
        draft, text, is_continued = self._drafted(request, conversation, thinks)
        guard = draft.guard
        splices = Splices(guard.splice, [splice.reply.tokens for splice in draft.splices()])
        cuts = draft.cuts(text)
        tokenised = self._tokenizer.tokenize(text, guard.sentinel, cuts, splices)
        n_tokens = len(tokenised.tokens)
        chooses_none = request.tool_choice is not None and request.tool_choice.type == "none"
        return Prompt(
            tokens=tokenised.tokens,
            boundaries=tuple(sorted({n for n in tokenised.offsets if 0 < n < n_tokens})),
            fired={**conversation.fired, **draft.fired},
            has_late_run=conversation.has_late_run,
            parses_tools=bool(draft.toolbox.schemas) and not chooses_none,
            text_len=len(text) - text.count(guard.sentinel) - text.count(guard.splice),
            dialect=self._dialect,
            schemas=draft.toolbox.schemas,
            reasoning=None if is_continued else draft.mode.reasoning,
            thinks=thinks,
            origin=draft.origin(text) if self._memory is not None else None,
            replays=draft.replayer.outcomes,
            searchable=draft.toolbox.searchable,
            edits=applied,
            outline=outline(conversation, draft.tools),
        )

    def _edited(
        self, request: wire.CountTokensRequest, conversation: Conversation
    ) -> tuple[Conversation, Sequence[Applied]]:
        if request.context_management is None:
            return conversation, ()
        edits, count = request.context_management.edits, self._tokenizer.count
        n_head = 0
        if any(isinstance(edit, wire.ClearToolUses) for edit in edits):
            definitions = [tools.definition(tool) for tool in Toolbox(request.tools).head]
            n_head += sum(count(tools.to_json(item)) for item in definitions)
            n_head += sum(count(block.text) for block in conversation.system)
        return apply_edits(conversation, edits, n_head, count)

    def _drafted(
        self, request: wire.CountTokensRequest, conversation: Conversation, thinks: bool
    ) -> tuple[_Draft, str, bool]:
        """A draft and its text; without replies put back where the template refuses them."""
        draft = self._draft(request, conversation, thinks, self._memory)
        try:
            return draft, *draft.text()
        except InvalidRequest:
            if not draft.splices():
                raise
        draft.replayer.refuse()
        plain = self._draft(request, conversation, thinks, None)
        plain = replace(plain, replayer=draft.replayer)
        return plain, *plain.text()

    def _draft(
        self,
        request: wire.CountTokensRequest,
        conversation: Conversation,
        thinks: bool,
        memory: ReplyMemory | None,
    ) -> _Draft:
        """The request's guarded parts, with sentinels that the request does not contain."""
        seen: set[str] = set()
        while True:
            guard = Guard(self._markup, seen)
            toolbox = Toolbox(request.tools)
            system = [guard.text(block.text) for block in conversation.system]
            definitions = [guard.value(tools.definition(tool)) for tool in toolbox.head]
            context = Context(guard)
            context.add([system, definitions])
            replayer = Replayer(memory, toolbox)
            converter = Converter(
                self._template, guard, self._dialect, self._late_form, context, replayer
            )
            draft = _Draft(
                self._template,
                guard,
                thinks,
                self._think_modes[thinks],
                self._late_form,
                system=system,
                tools=definitions,
                entries=converter.entries(conversation),
                n_head=conversation.n_head,
                marked_system=[bool(block.cache_control) for block in conversation.system],
                marked_tools=[bool(tool.cache_control) for tool in toolbox.head],
                context=context.digest,
                replayer=replayer,
                toolbox=toolbox,
            )
            if guard.is_sound:
                return draft
            seen |= guard.seen


class _Part(NamedTuple):
    """A prefix of the prompt, by the number of its parts. Entries come with all of the head."""

    n_system: int
    n_tools: int
    n_entries: int


@dataclass(frozen=True, slots=True)
class _Draft:
    """One request's guarded parts, from which any prefix of the conversation can be rendered."""

    template: ChatTemplate
    guard: Guard
    thinks: bool
    mode: ThinkMode
    late_form: LateForm | None
    system: list[str]
    tools: list[dict[str, Any]]
    entries: list[Entry]
    n_head: int
    marked_system: Sequence[bool]
    marked_tools: Sequence[bool]
    context: bytes
    replayer: Replayer
    toolbox: Toolbox

    def splices(self, n_entries: int | None = None) -> list[Splice]:
        """The replies that are put back into the prompt's first entries, in order."""
        return [entry.splice for entry in self.entries[:n_entries] if entry.splice is not None]

    @property
    def fired(self) -> dict[str, int]:
        """How often the rule of this draft's own changed something."""
        n_replayed = self.replayer.outcomes[Outcome.REPLAYED]
        return {"replay": n_replayed} if n_replayed else {}

    def text(self) -> tuple[str, bool]:
        """The whole prompt, and whether it ends in a final assistant text, which is left open:
        the reply continues it."""
        part = self._whole()
        messages = self._messages(part)
        last = messages[-1]
        if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
            mark = self.guard.end_mark
            opened = [*messages[:-1], {**last, "content": last["content"] + mark}]
            text, found, _ = self._render(opened, part, False).rpartition(mark)
            if found:
                return text, True
        return self._render(messages, part, True), False

    def origin(self, text: str) -> Origin | None:
        """Where the reply will be sampled; None where it continues a final assistant's text."""
        if self._role(len(self.entries) - 1) == "assistant":
            return None
        n_closed = self._end_of(self._whole(), text)
        return origin_of(text, n_closed, self.context, self.guard)

    def cuts(self, text: str) -> list[int]:
        """Ascending offsets into the prompt text where a saved state pays."""
        return sorted({self._end_of(part, text) for part in self._parts()})

    def _whole(self) -> _Part:
        return _Part(len(self.system), len(self.tools), len(self.entries))

    def _parts(self) -> set[_Part]:
        n_system, n_tools = len(self.system), len(self.tools)
        marked = _marked([entry.is_marked for entry in self.entries])
        return {
            *(_Part(n_system, n_tools, n) for n in (0, self.n_head, self._trailing_turn())),
            *(_Part(n_system, n_tools, n) for n in marked),
            *(_Part(n_system, n, 0) for n in _marked(self.marked_tools)),
            *(_Part(n, n_tools, 0) for n in _marked(self.marked_system)),
        }

    def _trailing_turn(self) -> int:
        """How many entries precede the last turn that is not the assistant's."""
        n = len(self.entries)
        while n > self.n_head and self._role(n - 1) == "assistant":
            n -= 1
        while n > self.n_head and self._role(n - 1) != "assistant":
            n -= 1
        return n

    def _role(self, index: int) -> str:
        role: str = self.entries[index].message["role"]
        return role

    def _end_of(self, part: _Part, text: str) -> int:
        """Where the prompt leaves the rendering of a part of it."""
        messages = self._messages(part)
        has_user = any(message["role"] != "system" for message in messages)
        if not has_user and not self.template.renders_head_alone:
            # Some user text must follow; this one parts from every text a client sends.
            entry = {"role": "user", "content": self.guard.end_mark}
            messages = arrange([*messages, entry], self.template)
        try:
            return _n_common(text, self._render(messages, part, False))
        except InvalidRequest:
            return 0

    def _messages(self, part: _Part) -> list[Message]:
        texts = self.system[: part.n_system]
        has_section = part.n_tools and not self.template.takes_tools
        if has_section and part.n_system == len(self.system):
            texts.append(tools.section(self.tools[: part.n_tools]))
        leading = [{"role": "system", "content": SEPARATOR.join(texts)}] if texts else []
        entries = self.entries[: part.n_entries]
        return arrange(leading + [entry.message for entry in entries], self.template)

    def _render(self, messages: list[Message], part: _Part, generation: bool) -> str:
        takes_tools = part.n_tools and self.template.takes_tools
        offered = self.tools[: part.n_tools] if takes_tools else None
        text = self.template.render(messages, offered, generation, thinks=self.thinks)
        text = self.mode.settle(text + self.mode.suffix * generation)
        if self.late_form is not None:
            text = self.late_form.rewrite(text, self.guard.late_mark)
        return put_back(text, self.splices(part.n_entries), self.guard)


def _check(request: wire.CountTokensRequest, conversation: Conversation) -> None:
    tools.check_choice(request)
    if not request.messages:
        raise InvalidRequest("messages: at least one message is required")
    check_blocks(request)
    spoken = [turn for turn in conversation.turns if turn.role != "system"]
    if not spoken:
        raise InvalidRequest("messages: at least one user message with content is required")
    if spoken[0].role != "user":
        raise InvalidRequest(
            f"messages.{spoken[0].index}: the first message must have the role 'user'"
        )


def _marked(flags: Sequence[bool]) -> list[int]:
    """For each of the last marks, how many parts it closes."""
    return [n for n, is_marked in enumerate(flags, 1) if is_marked][-_MAX_MARKS:]


def _n_common(left: str, right: str) -> int:
    """The length of the common prefix, by whole-slice comparisons."""
    if left.startswith(right):
        return len(right)
    end = min(len(left), len(right))
    return bisect_left(range(end), True, key=lambda n: left[: n + 1] != right[: n + 1])

"""The guide of each reply: what the request asks of it, as phases."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar

from ratoon import wire
from ratoon.chat.alphabet import Alphabet
from ratoon.chat.formats import hermes
from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.table import DIALECTS
from ratoon.chat.grammar.calls import Calls, behind_reasoning, marks, speakable
from ratoon.chat.grammar.compiler import Compiler, Matcher, TooLarge
from ratoon.chat.grammar.lark import Lark, one_of
from ratoon.chat.grammar.references import fault
from ratoon.chat.grammar.schema import pared, to_text
from ratoon.chat.guide import (
    Bound,
    Choice,
    Free,
    Limits,
    Opening,
    Over,
    Phase,
    ReplyGuide,
    Thinking,
    Trigger,
    Watch,
)
from ratoon.chat.render import Prompt
from ratoon.chat.thinking import Reasoning
from ratoon.chat.vocab import Vocab
from ratoon.errors import InternalError, InvalidRequest

log = logging.getLogger("ratoon.guide")

_N_GRAMMARS = 64
_N_WARNINGS = 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Wish:
    """What a reply must be. Equal wishes share their grammars, so tools and schema are JSON text;
    empty: none. ``is_barred``: no call may begin. ``where``: the field that holds the schema."""

    dialect: Dialect = field(hash=False)
    tools: str = ""
    schema: str = ""
    where: str = ""
    must_call: bool = False
    is_barred: bool = False
    is_single: bool = False

    @property
    def is_bound(self) -> bool:
        """Whether the whole reply follows a grammar."""
        return self.must_call or bool(self.schema)


class GuideMaker:
    """Makes guides for one model. Grammars are kept, as a client's tools hardly change."""

    def __init__(self, vocab: Vocab) -> None:
        self._alphabet = Alphabet(vocab)
        dialects = DIALECTS.values()
        self._compiler = Compiler(
            self._alphabet, {text for dialect in dialects for text in marks(dialect)}
        )
        self._triggers = lru_cache(_N_GRAMMARS)(self._make_triggers)
        self._matcher = lru_cache(_N_GRAMMARS)(self._make_matcher)
        self._warn = lru_cache(_N_WARNINGS)(log.warning)

    def guide(self, request: wire.MessagesRequest, prompt: Prompt) -> ReplyGuide | None:
        """None where the reply is free. Raises InvalidRequest for a schema that can't be kept."""
        wish = _wish(request, prompt)
        budget = request.thinking.budget_tokens if request.thinking else None
        if not wish.is_bound and not wish.tools and (budget is None or prompt.reasoning is None):
            return None
        if prompt.reasoning is not None:
            return ReplyGuide(self._reasoned(wish, prompt.reasoning, budget))
        return ReplyGuide(self._bound(wish) if wish.is_bound else self._free(wish))

    def arguments(self, name: str, schema: Mapping[str, Any]) -> ReplyGuide:
        """A reply that is a tool's arguments as JSON and nothing else. What of the schema can't be
        kept is left out."""
        for sound in (self._sound(name, dict(schema)), {"type": "object"}):
            try:
                return ReplyGuide(self._bound(_Wish(hermes.DIALECT, schema=to_text(sound))))
            except InvalidRequest as error:
                self._warn("tool %r: its arguments are not checked", name)
                log.debug("tool %r: %s", name, error)
        raise InternalError(f"tool {name!r}: no grammar for its arguments")

    def _reasoned(self, wish: _Wish, reasoning: Reasoning, budget: int | None) -> Phase:
        """Reasoning, where it is open or may come, then what the request wants."""
        alphabet = self._alphabet
        reply: Free | Bound
        reply = self._bound(wish, has_gap=True) if wish.is_bound else self._free(wish)
        limits = Limits(budget, may_end=not wish.is_bound)
        thinking = Thinking(alphabet, reasoning.end, limits, reply.fed)
        if reasoning.is_open:
            return thinking
        if not wish.is_bound:
            return Opening(alphabet, reasoning.start, thinking.fed, reply.fed)
        start = alphabet.of_mark(reasoning.start)
        if wish.must_call or len(start) > 1:
            return self._bound(wish)
        return Choice(start[0], alphabet.mask(start), thinking, self._bound(wish))

    def _free(self, wish: _Wish) -> Free:
        after = Over(self._alphabet) if wish.is_single else None
        return Free(Watch(self._alphabet, self._triggers(wish) if wish.tools else (), after))

    def _bound(self, wish: _Wish, *, has_gap: bool = False) -> Bound:
        over = Over(self._alphabet)
        return Bound(self._alphabet, self._matcher(wish, has_gap).deep_copy(), over)

    def _make_triggers(self, wish: _Wish) -> tuple[Trigger, ...]:
        def make(form: Form, calls: Calls) -> Matcher | None:
            start = calls.behind_start(form)
            return self._compiler.matcher(calls.lark.source(start)) if start else None

        triggers = []
        for form in wish.dialect.forms:
            matcher = None if wish.is_barred else self._with_tools(wish, partial(make, form))
            triggers.append(Trigger(form, self._signals(wish, form), matcher))
        return tuple(triggers)

    def _signals(self, wish: _Wish, form: Form) -> dict[str, list[int]]:
        """What a guide waits for behind the form's start, one byte a character, with its tokens."""
        tools = speakable(wish.dialect, json.loads(wish.tools))
        signals = (signal for layout in form.layouts for signal in layout.signals(tools))
        return {each.encode().decode("latin-1"): self._compiler.spell(each) for each in signals}

    def _make_matcher(self, wish: _Wish, has_gap: bool) -> Matcher:
        """The grammar of a whole reply."""

        def make(calls: Calls) -> Matcher:
            choices = []
            if wish.schema and not wish.must_call:
                answer = calls.lark.text(wish.dialect.answer)
                choices.append(f"{answer} {self._value(wish, calls.lark)}")
            # A call in bare JSON could not be told from the value.
            forms = [f for f in wish.dialect.forms if not (choices and f.start.startswith("{"))]
            whole = (found for form in forms if (found := calls.whole(form)))
            choices += [next(whole, "")] if calls.tools else []
            if not any(choices):
                raise InvalidRequest("tool_choice: this model can't call any of the tools")
            reply = one_of([choice for choice in choices if choice])
            if wish.dialect.thought is not None:
                reply = f"({wish.dialect.thought(calls.lark)})? ({reply})"
            source = calls.lark.source(behind_reasoning(reply) if has_gap else reply)
            return self._compiler.matcher(source)

        return self._with_tools(wish, make)

    def _value(self, wish: _Wish, lark: Lark) -> str:
        """The JSON of a structured output."""

        def refuse(_subject: str, reason: str) -> None:
            raise InvalidRequest(f"{wish.where}: {reason}")

        schema = json.loads(wish.schema)
        if reason := fault(schema):
            refuse("", reason)
        self._compiler.lark(refuse).json(schema)
        return lark.json(schema)

    def _with_tools(self, wish: _Wish, make: Callable[[Calls], T]) -> T:
        """What ``make`` makes of the tools; of their names only, where that is too much."""
        asked = json.loads(wish.tools or "{}")
        tools = speakable(wish.dialect, asked)
        for name in asked.keys() - tools.keys():
            self._warn("tool %r can't be called: this model can't write its name", name)
        lark = self._compiler.lark
        try:
            sound = {name: self._sound(name, schema) for name, schema in tools.items()}
            return make(Calls(lark(self._report), sound, wish.is_single))
        except (TooLarge, RecursionError) as error:
            self._warn("the arguments of %d tools are not checked: %s", len(tools), str(error))
        names_only = dict.fromkeys(tools, {"type": "object"})
        try:
            return make(Calls(lark(self._report), names_only, wish.is_single))
        except TooLarge as error:
            raise InvalidRequest(f"{wish.where if wish.schema else 'tools'}: {error}") from None

    def _sound(self, name: str, schema: Any) -> Any:
        """A tool's schema; without its references, where they can't be followed."""
        reason = fault(schema)
        if reason:
            self._report(name, reason)
        return pared(schema) if reason else schema

    def _report(self, subject: str, reason: str) -> None:
        self._warn("tool %r: its schema is kept only in part", subject)
        log.debug("tool %r: %s", subject, reason)  # the reason may quote the client


def _wish(request: wire.MessagesRequest, prompt: Prompt) -> _Wish:
    choice = request.tool_choice or wire.ToolChoice(type="auto")
    tools = prompt.schemas if prompt.parses_tools or choice.type == "none" else {}
    if choice.type == "tool":
        tools = {name: schema for name, schema in tools.items() if name == choice.name}
    config = request.output_config.format if request.output_config else None
    output = config or request.output_format
    is_barred = choice.type == "none"
    return _Wish(
        dialect=prompt.dialect,
        tools=to_text(dict(tools)) if tools and not (is_barred and output) else "",
        schema=to_text(output.json_schema) if output else "",
        where="output_config.format.schema" if config else "output_format.schema",
        must_call=bool(tools) and choice.type in ("any", "tool"),
        is_barred=is_barred,
        is_single=choice.disable_parallel_tool_use,
    )

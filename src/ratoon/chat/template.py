"""The model's own Jinja template, sandboxed, and what it can express.

A template is code from a model file. It runs in Jinja's immutable sandbox and is asked, once, by
rendering tiny conversations, which roles and shapes it takes; nothing is guessed from model names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import copy
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ratoon.errors import InvalidRequest, ModelError

Message = dict[str, Any]


class _Generation(Extension):
    """``{% generation %}`` marks text for training; for serving its body is plain template."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


class _Given(list[Any]):
    """A list that is not the template's own."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Some templates queue up ids of calls: a list of their own may grow and shrink."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_own = type(obj) is list and attr in ("append", "pop")
        return is_own or super().is_safe_attribute(obj, attr, value)


def _environment(now: Callable[[], datetime]) -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


class ChatTemplate:
    """Renders conversations in the OpenAI shape; its attributes say what the template takes.

    ``takes_tools``             tool definitions are rendered
    ``takes_system``            a leading system message is rendered
    ``takes_several_systems``   more than one leading system message is rendered, in order
    ``takes_late_system``       a system message further on is rendered in place, as system
    ``takes_tool_role``         tool results are rendered
    ``takes_user_after_tool``   a user message may follow a tool result
    ``takes_lone_results``      results look the same behind a text as behind their call
    ``takes_stubs``             a ``stub_call`` can stand for something else
    ``renders_tool_calls``      an assistant's tool calls are rendered
    ``takes_parallel_calls``    several calls in one assistant message are rendered
    ``keeps_text_of_calls``     the text beside a call is rendered, and stays when more follows
    ``shown_call``              the reply that calls ``PROBE_NAME`` with ``PROBE_ARGUMENTS``
    ``wants_string_arguments``  arguments must be JSON text, not an object
    ``wants_alternation``       two user messages in a row are refused
    ``renders_head_alone``      a system message without any user message is rendered
    """

    def __init__(
        self, source: str, bos: str, eos: str, now: Callable[[], datetime] = datetime.now
    ) -> None:
        self.source = source
        self.bos = bos
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = _environment(now).from_string(source)
        except (TemplateError, SyntaxError, RecursionError, ValueError) as error:
            raise ModelError(f"the model's chat template is not valid: {error}") from error
        self._wants_parts, self._no_tools = self._probe_basics()
        self._probe_roles()
        self._probe_tools()

    def render(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
        *,
        thinks: bool = False,
    ) -> str:
        """The prompt text; ``add_generation_prompt`` ends it with the assistant's header.
        ``thinks`` asks for reasoning, by the names that templates know the switch under.

        Raises InvalidRequest when the template refuses the conversation.
        """
        if not tools:
            tools = self._no_tools
        if self._wants_parts:
            messages = [_with_parts(message) for message in messages]
        try:
            return self._template.render(
                messages=_Given(messages),
                tools=None if tools is None else _Given(tools),
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinks,
                thinking=thinks,
                **self._tokens,
            )
        except Exception as error:  # foreign code: it may raise anything
            raise InvalidRequest(
                f"the model's chat template refused the conversation: {error}"
            ) from error

    def without_tools(self) -> ChatTemplate:
        """The same template, where tools and calls are said in words instead."""
        plain = copy(self)
        plain.takes_tools = plain.renders_tool_calls = plain.takes_parallel_calls = False
        return plain

    def opening(self, *, thinks: bool) -> tuple[str, str]:
        """A user message, and what the template writes behind it for the reply to follow."""
        messages = [_user("alpha")]
        without = self.render(messages, None, False, thinks=thinks)
        whole = self.render(messages, None, True, thinks=thinks)
        return without, whole[len(without) :] if whole.startswith(without) else ""

    def before_reply(self) -> str:
        """What the template writes in front of an earlier reply's text."""
        messages = [_user("alpha"), _assistant("beta"), _user("gamma")]
        return self.render(messages, None, False).partition("beta")[0]

    def stub_call(self, id: str, name: str, mark: str) -> Message:
        """A message with one call that shows ``mark`` in its arguments."""
        arguments: Any = {mark: ""}
        if self.wants_string_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return _call_message([(name, arguments)], [id])

    def stub_end(self, id: str) -> str:
        """What the template writes behind the mark of a stub call, up to the end of the turn."""
        return (self._stub_end or "").replace(_PROBE_IDS[0], id)

    def _probe_basics(self) -> tuple[bool, list[dict[str, Any]] | None]:
        """Whether content comes in parts, and how the absence of tools is written."""
        forms: list[tuple[bool, list[dict[str, Any]] | None]]
        forms = [(False, None), (False, []), (True, None), (True, [])]
        for form in forms:
            self._wants_parts, self._no_tools = form
            if self._shows([_user("alpha")], "alpha"):
                return form
        raise ModelError("the model's chat template can't render a user message")

    def _probe_roles(self) -> None:
        self.takes_system = self._shows([_system("alpha"), _user("beta")], "alpha", "beta")
        self.takes_several_systems = self._shows(
            [_system("alpha"), _system("beta"), _user("gamma")], "alpha", "beta", "gamma"
        )
        self.wants_alternation = not self._shows([_user("alpha"), _user("beta")], "alpha", "beta")
        self.renders_head_alone = self._shows([_system("alpha")], "alpha")
        self.takes_late_system = self._gives_authority(
            [_user("alpha"), _system("beta"), _assistant("gamma"), _user("delta")],
            ("alpha", "beta", "gamma", "delta"),
        )

    def _probe_tools(self) -> None:
        tools = [_PROBE_TOOL]
        shown = self._attempt([_system("alpha"), _user("beta")], tools)
        if shown is None:
            shown = self._attempt([_user("beta")], tools)
        self.takes_tools = shown is not None and PROBE_NAME in shown
        self.wants_string_arguments = False
        self.renders_tool_calls = self._shows_call(PROBE_ARGUMENTS, '{"zeta"', "<", "zeta")
        if not self.renders_tool_calls:
            self.renders_tool_calls = self._shows_call('{"zeta": "eta"}', '{"zeta": "eta"}')
            self.wants_string_arguments = self.renders_tool_calls
        self.takes_parallel_calls = self.renders_tool_calls and self._shows(
            [_user("alpha"), self._caller("theta", "iota")], "theta", "iota", tools=tools
        )
        self.shown_call = self._call_text() if self.renders_tool_calls else ""
        caller = self._caller(PROBE_NAME) if self.renders_tool_calls else _assistant("beta")
        self.keeps_text_of_calls = self._shows(
            [_user("alpha"), {**caller, "content": "xi"}, _RESULT, _assistant("nu")],
            *("alpha", "xi", "kappa", "nu"),
            tools=tools,
        )
        round_trip = [_user("alpha"), caller, _RESULT]
        self.takes_tool_role = self._shows(round_trip, "alpha", "kappa", tools=tools)
        self.takes_user_after_tool = self.takes_tool_role and self._shows(
            [*round_trip, _user("lambda")], "alpha", "kappa", "lambda", tools=tools
        )
        self.takes_lone_results = self.takes_tool_role and self._shows_lone_results(caller)
        self._stub_end = self._probe_stub() if self.renders_tool_calls else None
        self.takes_stubs = self._stub_end is not None
        if self.takes_late_system and self.takes_tool_role:
            self.takes_late_system = self._gives_authority(
                [*round_trip, _system("mu"), _assistant("nu")], ("kappa", "mu", "nu")
            )

    def _probe_stub(self) -> str | None:
        mark = "sigma"
        stub = self.stub_call(_PROBE_IDS[0], PROBE_NAME, mark)
        shown = [
            self._attempt([_user("alpha"), speaker], [_PROBE_TOOL])
            for speaker in (stub, _assistant(mark))
        ]
        if any(text is None or text.count(mark) != 1 for text in shown):
            return None
        behind_stub, behind_text = (str(text).partition(mark)[2] for text in shown)
        is_closed = behind_stub.endswith(behind_text)
        return behind_stub.removesuffix(behind_text) if is_closed else None

    def _shows_lone_results(self, caller: Message) -> bool:
        more = [_RESULT, _assistant("xi"), _RESULT, _assistant("omicron")]
        shown = [
            self._attempt([_user("alpha"), speaker, *more], [_PROBE_TOOL])
            for speaker in (caller, _assistant("beta"))
        ]
        if None in shown:
            return False
        behind_call, behind_text = (str(text).rpartition("alpha")[2] for text in shown)
        end = behind_text.partition("beta")[2]
        return "kappa" in end and behind_call.endswith(end)

    def _caller(self, *names: str) -> Message:
        arguments: Any = PROBE_ARGUMENTS
        if self.wants_string_arguments:
            arguments = json.dumps(arguments)
        return _call_message([(name, arguments) for name in names])

    def _call_text(self) -> str:
        """What stands behind the header of a reply, in a conversation that ends with a call."""
        opening, tools = [_user("alpha")], [_PROBE_TOOL]
        text = self.render([*opening, self._caller(PROBE_NAME)], tools, False)
        header = self.render(opening, tools, True)
        return text.removeprefix(header) if text.startswith(header) else text.rpartition("alpha")[2]

    def _shows_call(self, arguments: Any, *forms: str) -> bool:
        """Whether a call appears with its arguments in one of the given forms.

        A template that prints an object without ``tojson`` shows Python's notation, which none
        of the forms matches; one that quotes JSON text again escapes it.
        """
        conversation = [_user("alpha"), _call_message([(PROBE_NAME, arguments)])]
        text = self._attempt(conversation, [_PROBE_TOOL])
        if text is None:
            return False
        call = text[text.rfind("alpha") :]
        is_python = "{'zeta'" in call
        return (
            not is_python
            and PROBE_NAME in call
            and "eta" in call
            and any(form in call for form in forms)
        )

    def _gives_authority(self, messages: list[Message], words: Sequence[str]) -> bool:
        """Whether the conversation is shown in order, and not as if its systems were users."""
        if not self._shows(messages, *words):
            return False
        as_users = [{**m, "role": "user"} if m["role"] == "system" else m for m in messages]
        return self._attempt(messages, None) != self._attempt(as_users, None)

    def _shows(
        self, messages: list[Message], *words: str, tools: list[dict[str, Any]] | None = None
    ) -> bool:
        """Whether the words appear in the rendered conversation, in this order."""
        text = self._attempt(messages, tools)
        if text is None:
            return False
        at = 0
        for word in words:
            at = text.find(word, at)
            if at < 0:
                return False
            at += len(word)
        return True

    def _attempt(self, messages: list[Message], tools: list[dict[str, Any]] | None) -> str | None:
        try:
            return self.render(messages, tools, False)
        except InvalidRequest:
            return None


PROBE_NAME = "epsilon"
PROBE_ARGUMENTS = {"zeta": "eta"}
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "probe",
        "parameters": {
            "type": "object",
            "properties": {"zeta": {"type": "string", "description": "probe"}},
            "required": ["zeta"],
        },
    },
}
# Nine alphanumeric characters: the only form of id that every known template accepts.
_PROBE_IDS = ("call00001", "call00002")
_RESULT: Message = {
    "role": "tool",
    "content": "kappa",
    "name": PROBE_NAME,
    "tool_call_id": _PROBE_IDS[0],
}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _call_message(calls: list[tuple[str, Any]], ids: Sequence[str] = _PROBE_IDS) -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, (name, arguments) in zip(ids, calls, strict=False)
        ],
    }


def _with_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}

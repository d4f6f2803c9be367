"""Orders of roles that a template takes: where it is strict, neighbours become one message."""

from __future__ import annotations

from itertools import takewhile

from ratoon.chat.late import SEPARATOR
from ratoon.chat.template import ChatTemplate, Message


def arrange(messages: list[Message], template: ChatTemplate) -> list[Message]:
    """The same texts in the same order, in messages the template accepts.

    Pure, and stable: more messages at the end change at most the last one.
    """
    leading = list(takewhile(lambda message: message["role"] == "system", messages))
    rest = messages[len(leading) :]
    if len(leading) > 1 and not template.takes_several_systems:
        leading = [_joined(leading)]
    if leading and not template.takes_system:
        opening = {"role": "user", "content": _joined(leading)["content"]}
        if rest and rest[0]["role"] == "user":
            rest = [_joined([opening, rest[0]]), *rest[1:]]
        else:
            rest = [opening, *rest]
        leading = []
    return leading + (_alternating(rest, template) if template.wants_alternation else rest)


def _alternating(messages: list[Message], template: ChatTemplate) -> list[Message]:
    arranged: list[Message] = []
    for message in messages:
        if arranged and _belongs(arranged[-1], message, template):
            arranged[-1] = _joined([arranged[-1], message])
        else:
            arranged.append(message)
    return arranged


def _belongs(last: Message, message: Message, template: ChatTemplate) -> bool:
    """Whether the message can only be rendered as a part of the one before it."""
    if last["role"] == message["role"]:
        return message["role"] in ("user", "assistant")
    is_after_tool = last["role"] == "tool" and message["role"] == "user"
    return is_after_tool and not template.takes_user_after_tool


def _joined(messages: list[Message]) -> Message:
    """One message of the first one's role with the texts and calls of all."""
    content = SEPARATOR.join(message["content"] for message in messages if message["content"])
    calls = [call for message in messages for call in message.get("tool_calls", ())]
    joined = {**messages[0], "content": content}
    return {**joined, "tool_calls": calls} if calls else joined

"""System messages further on in a conversation, for templates that refuse or drop them there.

Such a message is given to the template as a user's, between two marks. What the template wrote
around them is then replaced by what it writes around a leading system message, so that the text
keeps its place and its authority.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratoon.chat.template import ChatTemplate, Message
from ratoon.errors import InvalidRequest

# Stands between neighbouring texts wherever they become one: system blocks, text blocks of a
# message, texts of a tool result, merged messages.
SEPARATOR = "\n\n"

_ROLES = ("system", "developer")
_MAX_WRAPPER = 40  # what is longer holds text of the template's own


@dataclass(frozen=True, slots=True)
class Wrapper:
    """What a template writes around the content of one role's message."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class LateForm:
    """Rewrites marked user text into system messages."""

    user: Wrapper
    system: Wrapper

    def rewrite(self, text: str, mark: str) -> str:
        """``text`` with every ``mark`` + content + ``mark`` taken out of its user message.

        Content that does not stand in one stays where it is, as a reminder.
        """
        pieces = text.split(mark)
        for i in range(1, len(pieces) - 1, 2):
            pieces[i - 1 : i + 2] = self._moved(*pieces[i - 1 : i + 2])
        return "".join(pieces)

    def _moved(self, before: str, content: str, after: str) -> tuple[str, str, str]:
        user, system = self.user, self.system
        has_more = after.startswith(SEPARATOR)
        if not (has_more or after.startswith(user.after)):
            return before, reminder(content), after
        if before.endswith(user.before):
            before = before.removesuffix(user.before)
        else:
            before = before.removesuffix(SEPARATOR) + user.after
        rest = after.removeprefix(SEPARATOR) if has_more else after.removeprefix(user.after)
        opening = user.before if has_more else ""
        return before, f"{system.before}{content}{system.after}", opening + rest


def reminder(text: str) -> str:
    """The nearest form where nothing but a user's message can hold the text."""
    return f"<system-reminder>\n{text}\n</system-reminder>"


def find_late_form(template: ChatTemplate) -> LateForm | None:
    """None where late system messages need no help, or a system message has no wrapper."""
    if template.takes_late_system or not template.takes_system:
        return None
    try:
        user = _user_wrapper(template)
        system = _system_wrapper(template, user)
    except InvalidRequest:
        return None
    return LateForm(user, system) if user.before and user.after and system else None


def _user_wrapper(template: ChatTemplate) -> Wrapper:
    head = [_message("system", "alpha")]
    after = _between(template, [*head, _message("user", "beta")], "beta", None)
    if not template.wants_alternation:
        users = [*head, _message("user", "beta"), _message("user", "gamma")]
        return Wrapper(_between(template, users, "beta", "gamma").removeprefix(after), after)
    turns = [_message("user", "beta"), _message("assistant", "gamma"), _message("user", "delta")]
    behind_system = _between(template, [*head, *turns], "alpha", "beta")
    behind_reply = _between(template, [*head, *turns], "gamma", "delta")
    return Wrapper(_common_end(behind_system, behind_reply), after)


def _system_wrapper(template: ChatTemplate, user: Wrapper) -> Wrapper | None:
    messages = [_message("system", "alpha"), _message("user", "beta")]
    head = _between(template, messages, None, "alpha").removeprefix(template.bos)
    named = [
        Wrapper(user.before.replace("user", role), user.after.replace("user", role))
        for role in _ROLES
        if "user" in user.before
    ]
    found = max(named, key=lambda wrapper: head.rfind(wrapper.before), default=None)
    if found and found.before in head:
        return found
    after = _between(template, messages, "alpha", "beta").removesuffix(user.before)
    is_inside_user = head.startswith(user.before)
    if is_inside_user or not head.strip() or not after.strip() or len(head) > _MAX_WRAPPER:
        return None
    return Wrapper(head, after)


def _between(
    template: ChatTemplate, messages: list[Message], left: str | None, right: str | None
) -> str:
    """What the template writes between two contents; None: the edge of the text."""
    text = template.render(messages, None, False)
    start = text.rindex(left) + len(left) if left else 0
    return text[start : text.rindex(right) if right else len(text)]


def _common_end(left: str, right: str) -> str:
    n = 0
    while n < min(len(left), len(right)) and left[-n - 1] == right[-n - 1]:
        n += 1
    return left[len(left) - n :]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}

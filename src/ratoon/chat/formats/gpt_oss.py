"""gpt-oss (the harmony format): every part of a reply is a message in a channel.

``<|channel|>analysis<|message|>`` begins reasoning, ``<|channel|>commentary to=functions.NAME
<|message|>`` a call, any other message text. A recipient may as well stand in front of its channel.
The prompt ends before the first channel.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from ratoon.chat.formats.call import Dialect, Form, Layout, Write
from ratoon.chat.formats.json_text import read_arguments
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Broken, Ended, Reading, Source
from ratoon.chat.grammar.lark import ANY, Lark, plain, without
from ratoon.chat.grammar.schema import Schema

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN = "<|constrain|>"
_END = "<|end|>"
_ENDS = (_END, "<|call|>", "<|return|>")
_ANALYSIS = "analysis"
_NAMESPACE = "functions."
_WORD = re.compile(r"[^\s<]+")
# A header has a role, a recipient, a channel, a mark and a content type.
_MAX_HEADER = 8

# A recipient makes a message a call. It stands behind the role, or behind the channel and, with
# some models, the content type. In front of all of a reply it may be text, so it must be a tool.
_RECIPIENT = "to="
_OF_ROLE = f"assistant {_RECIPIENT}"
_OF_CHANNEL = tuple(
    f"{channel}{kind} {_RECIPIENT}"
    for channel in ("commentary", _ANALYSIS)
    for kind in ("", f" {_CONSTRAIN}json", " json")
)


def _read_header(source: Source, *, is_call: bool) -> Generator[None, None, bool]:
    """The rest of a header, whose order models mix up; tells whether it has a body. Without a
    recipient it ends where a channel begins, which may have one."""
    for _ in range(_MAX_HEADER):
        mark = yield from source.take(_MESSAGE, _CONSTRAIN, *[_CHANNEL] * is_call)
        if mark == _MESSAGE:
            return True
        if not mark:
            if (yield from source.peek(_CHANNEL)):
                return False
            yield from source.word(_WORD)
    raise Broken


def _read_call(source: Source, sink: Sink, recipient: str) -> Reading:
    """The body of a call; the mark that ends it is left."""
    sink.name(recipient.removeprefix(_NAMESPACE))
    yield from read_arguments(source, sink)
    sink.end()


def _read_text(source: Source, sink: Sink, channel: str) -> Reading:
    """The body of any other message; the mark that ends it is left."""
    sink.separate()
    into = sink.thinking if channel == _ANALYSIS else sink.text
    try:
        yield from source.until(*_ENDS, _START, _CHANNEL, into=into)
    except Ended:
        into(source.leave())


def read_channel(source: Source, sink: Sink) -> Reading:
    """A message behind ``<|channel|>``."""
    yield from _read_message(source, sink, *_OF_CHANNEL)


def read_start(source: Source, sink: Sink) -> Reading:
    """A message behind ``<|start|>``."""
    yield from _read_message(source, sink, _OF_ROLE)


def _read_message(source: Source, sink: Sink, *signals: str) -> Reading:
    try:
        is_call = bool((yield from source.signal(*signals)))
        word = yield from source.word(_WORD)
        has_body = yield from _read_header(source, is_call=is_call)
    except Ended:
        return
    if has_body:
        yield from (_read_call if is_call else _read_text)(source, sink, word)


def read_recipient(source: Source, sink: Sink) -> Reading:
    """A call whose recipient stands in front of all."""
    if not (yield from source.signal(_NAMESPACE)):
        raise Broken
    name = yield from source.word(_WORD)
    yield from _read_header(source, is_call=True)
    yield from _read_call(source, sink, name)


def read_text(source: Source, sink: Sink) -> Reading:
    """A message without a header."""
    yield from _read_text(source, sink, "")


def read_nothing(source: Source, sink: Sink) -> Reading:
    """A mark that ends a message."""
    yield from ()


def _write(namespace: str, channel: str = "") -> Write:
    """``channel`` is what stands between the recipient and the content type."""

    def write(lark: Lark, name: str, schema: Schema) -> str:
        kind = f"({lark.text(f' {_CONSTRAIN}json')} | {plain(' json')})?"
        head = f"{plain(namespace + name)} {lark.text(channel)} {kind}"
        return f"{head} {lark.text(_MESSAGE)} {lark.arguments(schema)}"

    return write


def _layout(before: str, call: Write) -> Layout:
    marks = (_CHANNEL, _CONSTRAIN, _MESSAGE)
    return Layout(call, before=before, names=_WORD, marks=marks, waits=True)


def _thought(lark: Lark) -> str:
    """One analysis, and the header of what follows up to its channel."""
    kept = " & ".join([ANY, *map(without, (_START, _CHANNEL))])
    text = lark.until(kept, f"{_END}{_START}assistant", _END)
    return f"{lark.text(_CHANNEL + _ANALYSIS + _MESSAGE)} {text}"


_IN_CHANNEL = _write(_NAMESPACE)
_BEHIND_CHANNEL = tuple(_layout(signal, _IN_CHANNEL) for signal in _OF_CHANNEL)
_EARLY = f"{_CHANNEL}commentary"
_BEHIND_ROLE = _layout(_OF_ROLE, _write(_NAMESPACE, _EARLY))
_OPENING = _layout(_NAMESPACE, _write("", _EARLY))

DIALECT = Dialect(
    "gpt_oss",
    (
        Form(_CHANNEL, read_channel, holds_text=True, layouts=_BEHIND_CHANNEL),
        Form(_START, read_start, holds_text=True, layouts=(_BEHIND_ROLE,)),
        Form(_MESSAGE, read_text, holds_text=True),
        Form(_RECIPIENT, read_recipient, is_opening=True, holds_text=True, layouts=(_OPENING,)),
        *(Form(mark, read_nothing, holds_text=True) for mark in _ENDS),
    ),
    thought=_thought,
    answer=f"{_CHANNEL}final{_MESSAGE}",
)

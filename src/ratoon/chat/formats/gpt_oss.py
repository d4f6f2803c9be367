"""gpt-oss (the harmony format): every part of a reply is a message in a channel.

``<|channel|>analysis<|message|>`` begins reasoning, ``<|channel|>commentary to=functions.NAME
<|message|>`` a call, any other message text. The prompt ends before the first channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratoon.chat.formats.call import Dialect, Form, Layout
from ratoon.chat.formats.json_text import read_arguments
from ratoon.chat.formats.sink import Sink
from ratoon.chat.formats.source import Broken, Ended, Reading, Source
from ratoon.chat.grammar.lark import Lark, plain
from ratoon.chat.grammar.schema import Schema

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_RECIPIENT = "to="
_NAMESPACE = "functions."
_WORD = re.compile(r"[^\s<]+")
# A header has a role, a recipient, a channel, a mark and a content type.
_MAX_HEADER = 8


@dataclass(slots=True)
class _Header:
    channel: str = ""
    recipient: str = ""


def _read_header(source: Source, header: _Header) -> Reading:
    """Everything up to ``<|message|>``. Models mix up its order."""
    for _ in range(_MAX_HEADER):
        mark = yield from source.take(_MESSAGE, _CHANNEL, "<|constrain|>")
        if mark == _MESSAGE:
            return
        if mark == _CHANNEL:
            header.channel = yield from source.word(_WORD)
        elif not mark:
            word = yield from source.word(_WORD)
            if word.startswith(_RECIPIENT):
                header.recipient = word.removeprefix(_RECIPIENT)
    raise Broken


def _read_body(source: Source, sink: Sink, header: _Header) -> Reading:
    """A message behind its header; the mark that ends it is left."""
    if header.recipient:
        sink.name(header.recipient.removeprefix(_NAMESPACE))
        yield from read_arguments(source, sink)
        sink.end()
        return
    sink.separate()
    into = sink.thinking if header.channel == "analysis" else sink.text
    try:
        yield from source.until(*_ENDS, _START, _CHANNEL, into=into)
    except Ended:
        into(source.leave())


def read_channel(source: Source, sink: Sink) -> Reading:
    """A message behind ``<|channel|>``."""
    header = _Header()
    try:
        header.channel = yield from source.word(_WORD)
        yield from _read_header(source, header)
    except Ended:
        return
    yield from _read_body(source, sink, header)


def read_start(source: Source, sink: Sink) -> Reading:
    """A message behind ``<|start|>``."""
    header = _Header()
    try:
        yield from _read_header(source, header)
    except Ended:
        return
    yield from _read_body(source, sink, header)


def read_recipient(source: Source, sink: Sink) -> Reading:
    """A call whose recipient stands in front of its channel; it may as well be plain text."""
    header = _Header(recipient=(yield from source.word(_WORD)))
    yield from _read_header(source, header)
    yield from _read_body(source, sink, header)


def read_text(source: Source, sink: Sink) -> Reading:
    """A message without a header."""
    yield from _read_body(source, sink, _Header())


def read_nothing(source: Source, sink: Sink) -> Reading:
    """A mark that ends a message."""
    yield from ()


def _write(lark: Lark, name: str, schema: Schema) -> str:
    kind = f"({lark.text(' <|constrain|>json')} | {plain(' json')})?"
    return f"{plain(name)} {kind} {lark.text(_MESSAGE)} {lark.arguments(schema)}"


def _write_early(lark: Lark, name: str, schema: Schema) -> str:
    head = lark.text(f"{_CHANNEL}commentary json{_MESSAGE}")
    return f"{plain(name)} {head} {lark.arguments(schema)}"


_NAMES = re.compile(r"[^\s<]+")
_MARKS = (_CHANNEL, "<|constrain|>", _MESSAGE)
_IN_CHANNEL = Layout(
    _write, before="commentary to=functions.", names=_NAMES, marks=_MARKS, waits=True
)
_EARLY = Layout(_write_early, before=_NAMESPACE, names=_NAMES, marks=_MARKS, waits=True)

DIALECT = Dialect(
    "gpt_oss",
    (
        Form(_CHANNEL, read_channel, holds_text=True, layouts=(_IN_CHANNEL,)),
        Form(_START, read_start, holds_text=True),
        Form(_MESSAGE, read_text, holds_text=True),
        Form(_RECIPIENT, read_recipient, is_opening=True, holds_text=True, layouts=(_EARLY,)),
        *(Form(mark, read_nothing, holds_text=True) for mark in _ENDS),
    ),
)

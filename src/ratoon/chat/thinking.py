"""Reasoning in front of an answer: how a template switches it, and how a reply is split."""

from __future__ import annotations

import os.path
import re
from dataclasses import dataclass

from ratoon.chat.formats.signal import BLANKS
from ratoon.chat.stop import n_partial
from ratoon.chat.template import ChatTemplate

# Marks of reasoning in the templates there are. The first pair that a template holds is its own.
_MARKS = (
    ("<think>", "</think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("[THINK]", "[/THINK]"),
    ("Here are my reasoning steps:\n", "\n[BEGIN FINAL RESPONSE]"),
)


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How the model marks its reasoning. ``is_open``: the prompt ends inside it already."""

    start: str = "<think>"
    end: str = "</think>"
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class ThinkMode:
    """What reasoning on, or off, does to a prompt.

    ``suffix``     what must follow the template's generation prompt
    ``reasoning``  how the reply may begin; None for a model without reasoning
    ``header``     the assistant's header up to where reasoning would stand
    ``block``      the empty block that stands there before each reply; "" where there is none
    """

    suffix: str = ""
    reasoning: Reasoning | None = None
    header: str = ""
    block: str = ""

    def settle(self, text: str) -> str:
        """``text`` with the block in front of earlier replies too, as they were generated: a
        history without it would ask for reasoning, and would leave the tokens in the cache.

        The header must hold markup, which client text can't contain.
        """
        if not (self.block and self.header and self.reasoning):
            return text
        marks = f"{re.escape(self.reasoning.start)}|{re.escape(self.reasoning.end)}"
        header = re.compile(rf"{re.escape(self.header)}(?!\s*(?:{marks}))")
        return header.sub(lambda found: found[0] + self.block, text)


def think_modes(template: ChatTemplate) -> dict[bool, ThinkMode]:
    """The modes for reasoning on and off, found by rendering.

    A template with no switch is switched off by a closed, empty block: the one it writes in front
    of earlier replies, if it does. One that writes no header for the reply is left alone.
    """
    marks = find_marks(template.source)
    if marks is None:
        return {True: ThinkMode(), False: ThinkMode()}
    start, end = marks
    on, off = (template.opening(thinks=thinks) for thinks in (True, False))
    header = os.path.commonprefix([_before_marks(text, marks) for text in (on[1], off[1])])
    closing = ""
    if _is_open(off[1], marks):
        closing = f"\n{end}\n\n"
    elif header and on == off and end not in off[1]:
        closing = _block_in_history(template, header, end) or f"{start}\n\n{end}\n\n"
    block = (off[1] + closing).removeprefix(header)
    return {
        True: ThinkMode("", Reasoning(start, end, is_open=_is_open(on[1], marks))),
        False: ThinkMode(closing, Reasoning(start, end), header, block),
    }


def _block_in_history(template: ChatTemplate, header: str, end: str) -> str:
    """What ends a reasoning that is not there, between an earlier reply and its header."""
    before = template.before_reply()
    block = before[before.rfind(header) + len(header) :] if header in before else ""
    return block if end in block else ""


def _before_marks(text: str, marks: tuple[str, str]) -> str:
    """The text up to the first mark in it."""
    return min((text.partition(mark)[0] for mark in marks), key=len)


def find_marks(source: str) -> tuple[str, str] | None:
    """The template's marks; a line break in one may be written as an escape."""
    plain = source.replace("\\n", "\n")
    return next((marks for marks in _MARKS if all(mark in plain for mark in marks)), None)


class ThinkSplitter:
    """Separates the reasoning that a reply begins with from its text.

    The blanks just inside the marks and just behind them belong to neither.
    """

    def __init__(self, reasoning: Reasoning) -> None:
        self._reasoning = reasoning
        self._is_inside = reasoning.is_open
        self._is_over = False
        self._has_thought = False  # some reasoning is out: leading blanks count from here on
        self._drops_blanks = False
        self._held = ""

    @property
    def is_over(self) -> bool:
        """Whether only text can follow."""
        return self._is_over

    def feed(self, text: str) -> tuple[str, str]:
        """Reasoning and text that are free to go."""
        if self._is_over:
            return "", self._answer(text)
        self._held += text
        if not self._is_inside and not self._enter():
            return "", self._answer(self._held_text()) if self._is_over else ""
        thought, found, rest = self._held.partition(self._reasoning.end)
        if found:
            self._held, self._is_over, self._drops_blanks = "", True, True
            return self._thought(thought.rstrip()), self._answer(rest)
        n_begun = n_partial(self._held, self._reasoning.end)
        free = self._held[: len(self._held) - n_begun].rstrip()
        self._held = self._held[len(free) :]
        return self._thought(free), ""

    def finish(self) -> tuple[str, str]:
        """What is left when nothing more will come."""
        is_inside, self._is_over = self._is_inside and not self._is_over, True
        held = self._held_text()
        return (self._thought(held), "") if is_inside else ("", self._answer(held))

    def _enter(self) -> bool:
        """Whether the reply begins with reasoning; while that is open, nothing is decided."""
        start, begun = self._reasoning.start, self._held.lstrip(BLANKS)
        if begun.startswith(start):
            self._is_inside, self._held = True, begun[len(start) :]
        elif not start.startswith(begun):
            self._is_over = True
        return self._is_inside

    def _held_text(self) -> str:
        held, self._held = self._held, ""
        return held

    def _thought(self, text: str) -> str:
        if not self._has_thought:
            text = text.lstrip()
            self._has_thought = bool(text)
        return text

    def _answer(self, text: str) -> str:
        if self._drops_blanks:
            text = text.lstrip(BLANKS)
            self._drops_blanks = not text
        return text


def _is_open(text: str, marks: tuple[str, str]) -> bool:
    start, end = marks
    return text.rfind(start) > text.rfind(end)

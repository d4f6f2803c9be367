"""Which tokens may come in one reply: any, until a call begins.

A guide is in one phase at a time. A phase lets tokens come and says which phase follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

from ratoon.chat.alphabet import Alphabet, either
from ratoon.chat.formats.call import Form
from ratoon.chat.formats.scan import Body
from ratoon.chat.formats.signal import find_signal
from ratoon.chat.grammar.compiler import Matcher


class Phase(Protocol):
    """A stretch of a reply."""

    def allowed(self) -> bytes | None:
        """As a guide's."""
        ...

    def accept(self, token: int) -> Phase | None:
        """The phase behind the token, often this one; None: it may not come, nothing changed."""
        ...


# The phase behind some bytes that a phase was the first to see; None: they may not come.
Then = Callable[[bytes], Phase | None]


class ReplyGuide:
    """Follows one reply through its phases."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase

    def allowed(self) -> bytes | None:
        return self._phase.allowed()

    def accept(self, token: int) -> bool:
        phase = self._phase.accept(token)
        if phase is None:
            return False
        self._phase = phase
        return True


class _Unbound:
    """Text in which any token may come."""

    _alphabet: Alphabet

    def allowed(self) -> bytes | None:
        return None

    def accept(self, token: int) -> Phase | None:
        return self.fed(self._alphabet.piece(token))

    def fed(self, raw: bytes) -> Phase | None:
        """The phase behind some bytes; None where they may not come."""
        raise NotImplementedError


class Over:
    """Nothing but the end of the turn."""

    def __init__(self, alphabet: Alphabet) -> None:
        self._alphabet = alphabet

    def allowed(self) -> bytes | None:
        return self._alphabet.end_mask

    def accept(self, token: int) -> Phase | None:
        return self if self._alphabet.is_end(token) else None


class Bound:
    """What a grammar says; ``then`` follows when it is complete and can't go on."""

    def __init__(self, alphabet: Alphabet, matcher: Matcher, then: Phase) -> None:
        self._alphabet = alphabet
        self._matcher = matcher
        self._then = then

    def fed(self, raw: bytes, begun: Sequence[int] = ()) -> Phase | None:
        """The phase behind what has ``begun`` and some bytes; None where they don't fit."""
        tokens = self._alphabet.spell(raw)
        return None if tokens is None else self._consume([*begun, *tokens])

    def _consume(self, tokens: Sequence[int]) -> Phase | None:
        n_taken = self._matcher.try_consume_tokens(list(tokens))
        if n_taken < len(tokens):
            self._matcher.rollback(n_taken)
            return None
        return self._then if self._matcher.is_stopped() else self

    def allowed(self) -> bytes | None:
        return bytes(self._matcher.compute_bitmask())

    def accept(self, token: int) -> Phase | None:
        return self._consume([token])


@dataclass(frozen=True, slots=True)
class Trigger:
    """A form whose start is watched for. ``matcher`` binds what follows it; without one the form
    may not begin. Where there are ``signals``, each with its tokens, one of them must come first,
    one byte a character."""

    form: Form
    signals: Mapping[str, Sequence[int]]
    matcher: Matcher | None

    @property
    def start(self) -> bytes:
        return self.form.start.encode()


@dataclass(frozen=True, slots=True)
class Watch:
    """What free text is watched for. ``after`` is the phase behind a call, None: free text."""

    alphabet: Alphabet
    triggers: tuple[Trigger, ...]
    after: Phase | None = None


class Free(_Unbound):
    """Any text. What begins a call hands over to the call's grammar."""

    def __init__(self, watch: Watch, has_spoken: bool = False) -> None:
        self._alphabet = watch.alphabet
        self._watch = watch
        self._has_spoken = has_spoken
        self._tail = b""  # what may turn out to begin a start
        self._longest = max((len(trigger.start) for trigger in watch.triggers), default=1)

    def fed(self, raw: bytes) -> Phase | None:
        text = self._tail + raw
        triggers = self._watch.triggers
        found = [(at, n) for n, each in enumerate(triggers) if (at := self._find(each, text)) >= 0]
        if not found:
            self._keep(text)
            return self
        at, n = min(found)
        form = triggers[n].form
        has_spoken = self._has_spoken or bool(text[:at].strip()) or form.holds_text
        return self._begin(triggers[n], text[at + len(triggers[n].start) :], has_spoken)

    def _keep(self, text: bytes) -> None:
        text = text if self._has_spoken else text.lstrip()
        self._has_spoken = self._has_spoken or len(text) > self._longest
        self._tail = text[-self._longest :]

    def _find(self, trigger: Trigger, text: bytes) -> int:
        """Where the trigger's start is, or -1."""
        if not trigger.form.is_opening:
            return text.find(trigger.start)
        n_blanks = len(text) - len(text.lstrip())
        is_first = not self._has_spoken and text.startswith(trigger.start, n_blanks)
        return n_blanks if is_first else -1

    def _begin(self, trigger: Trigger, rest: bytes, has_spoken: bool) -> Phase | None:
        if not trigger.form.layouts:
            return self._unguided(trigger).fed(rest)
        then = self._watch.after or Free(self._watch, has_spoken)
        call = _Call(self._alphabet, trigger, then)
        if not trigger.signals:
            return call.fed(rest)
        return Unsure(call, self._unguided(trigger)).fed(rest)

    def _unguided(self, trigger: Trigger) -> _Unbound:
        free = Free(self._watch, True)
        is_data = trigger.form.holds_data
        return Unguided(self._alphabet, Body(trigger.form), free) if is_data else free


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that is about to begin."""

    alphabet: Alphabet
    trigger: Trigger
    then: Phase

    def fed(self, rest: bytes, signal: str = "") -> Phase | None:
        matcher = self.trigger.matcher
        if matcher is None:
            return None
        begun = self.trigger.signals[signal] if signal else ()
        return Bound(self.alphabet, matcher.deep_copy(), self.then).fed(rest, begun)


class Unguided(_Unbound):
    """The body of a form that holds data: no other start counts inside."""

    def __init__(self, alphabet: Alphabet, body: Body, then: Free) -> None:
        self._alphabet = alphabet
        self._body = body
        self._then = then

    def fed(self, raw: bytes) -> Phase | None:
        body = copy(self._body)
        rest = body.feed(raw.decode("latin-1"))  # one character a byte: a piece may end inside one
        if rest is None:
            return Unguided(self._alphabet, body, self._then)
        return self._then.fed(rest.encode("latin-1"))


class Unsure(_Unbound):
    """What starts like a call, but may be data until a signal has come."""

    def __init__(self, call: _Call, otherwise: _Unbound, seen: bytes = b"") -> None:
        self._alphabet = call.alphabet
        self._call = call
        self._otherwise = otherwise
        self._seen = seen

    def fed(self, raw: bytes) -> Phase | None:
        seen = self._seen + raw
        found = find_signal(seen.decode("latin-1"), self._call.trigger.signals)
        if found is None:
            return self._otherwise.fed(seen)
        signal, end = found
        if signal:
            return self._call.fed(seen[end:], signal)
        return Unsure(self._call, self._otherwise, seen)


class Opening:
    """The beginning of a reply, where reasoning may start."""

    def __init__(self, alphabet: Alphabet, mark: str, thinking: Then, otherwise: Then) -> None:
        self._alphabet = alphabet
        self._mark = mark.encode()
        self._thinking = thinking
        self._otherwise = otherwise
        self._seen = b""

    def allowed(self) -> bytes | None:
        return None

    def accept(self, token: int) -> Phase | None:
        seen = self._seen + self._alphabet.piece(token)
        text = seen.lstrip()
        if text.startswith(self._mark):
            return self._thinking(text[len(self._mark) :])
        if not self._mark.startswith(text):
            return self._otherwise(seen)
        self._seen = seen
        return self


class Choice:
    """The beginning of a bound reply, where one token may start reasoning instead."""

    def __init__(self, start: int, mask: bytes, thinking: Phase, bound: Bound) -> None:
        self._start = start
        self._mask = mask
        self._thinking = thinking
        self._bound = bound

    def allowed(self) -> bytes | None:
        return either(self._bound.allowed() or b"", self._mask)

    def accept(self, token: int) -> Phase | None:
        return self._thinking if token == self._start else self._bound.accept(token)


@dataclass(frozen=True, slots=True)
class Limits:
    """``budget``: how many tokens reasoning may take, its end mark not counted; None: any number.
    ``may_end``: the turn may end inside it."""

    budget: int | None = None
    may_end: bool = True


class Thinking:
    """Reasoning: any text up to its end mark, which is forced once the budget is used up."""

    def __init__(self, alphabet: Alphabet, mark: str, limits: Limits, then: Then) -> None:
        self._alphabet = alphabet
        self._mark = mark
        self._end = mark.encode()
        self._limits = limits
        self._then = then
        self._tail = b""  # what may turn out to begin the end mark
        self._n_tokens = 0
        self._forced: list[int] = []

    def allowed(self) -> bytes | None:
        if not self._forced and self._n_tokens == self._limits.budget:
            self._forced = self._alphabet.of_mark(self._mark, _n_begun(self._tail, self._end))
        return self._alphabet.mask(self._forced[:1]) if self._forced else None

    def accept(self, token: int) -> Phase | None:
        if self._forced and token != self._forced[0]:
            return None
        if self._alphabet.is_end(token) and not self._limits.may_end:
            return None
        return self.fed(self._alphabet.piece(token))

    def fed(self, raw: bytes) -> Phase | None:
        text = self._tail + raw
        found = text.find(self._end)
        if found >= 0:
            return self._then(text[found + len(self._end) :])
        self._tail = text[-len(self._end) :]
        self._forced = self._forced[1:]
        self._n_tokens += bool(raw)
        return self


def _n_begun(text: bytes, mark: bytes) -> int:
    """How many bytes at the text's end begin the mark."""
    return max(n for n in range(len(mark)) if text.endswith(mark[:n]))

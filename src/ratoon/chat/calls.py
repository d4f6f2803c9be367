"""Separates a reply's calls from its text, as they come."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ratoon.chat.deltas import Delta
from ratoon.chat.formats.call import Dialect, Form
from ratoon.chat.formats.scan import Body
from ratoon.chat.formats.signal import BLANKS
from ratoon.chat.formats.sink import Sink, Tools
from ratoon.chat.formats.source import Broken, Ended, Reading, Source
from ratoon.chat.stop import n_partial


class CallSplitter:
    """Gives a call's name and arguments as soon as they are sure (see ``Sink``).

    Where a form turns out to be none, everything from its start to the break is text, and what
    follows is read again; of one that holds data all is text. No more than a signal is read twice,
    so the work is linear in the reply's length. The end mark of a call that broke behind its
    arguments is no text.
    """

    def __init__(
        self,
        tool_id: Callable[[], str],
        dialect: Dialect,
        tools: Tools,
        *,
        takes_calls: bool = True,
    ) -> None:
        self._forms = dialect.forms
        self._source = Source()
        self._sink = Sink(self._source, tool_id, tools, takes_calls=takes_calls)
        self._reading: Reading | None = None
        self._form = dialect.forms[0]  # the one that is read
        self._data: Body | None = None
        self._stray = ""  # the end mark that a broken call may still be followed by
        self._held = ""
        self._is_after_call = False
        self._has_spoken = False

    def feed(self, text: str) -> list[Delta]:
        rest: str | None = text
        while rest is not None:
            rest = self._next()(rest)
        return self._sink.drain()

    def _next(self) -> Callable[[str], str | None]:
        """Takes text; what belongs to a further one is returned."""
        if self._data is not None:
            return partial(self._skip, self._data)
        return self._text if self._reading is None else self._read

    def finish(self) -> list[Delta]:
        if self._reading is not None:
            self._end(self._reading)
        held, self._held = self._held, ""
        self._say(held)
        return self._sink.drain()

    def _text(self, text: str) -> str | None:
        """Say text; what follows the start of a call is returned."""
        whole = self._behind_stray(self._held + text)
        if whole is None:
            return None
        text = whole
        found = min(
            ((at, form.start, form) for form in self._forms if (at := self._find(form, text)) >= 0),
            default=None,
        )
        n_held = 0 if found else max(self._n_begun(form, text) for form in self._forms)
        end = found[0] if found else len(text) - n_held
        self._speak(text[:end])
        if found is None:
            self._held += text[end:]
            return None
        at, start, form = found
        self._begin(form)
        return text[at + len(start) :]

    def _behind_stray(self, text: str) -> str | None:
        """The text, without the end mark of a broken call; None, and held, while it may come."""
        begun, stray = text.lstrip(), self._stray
        if stray.startswith(begun) and begun != stray:
            self._held = text
            return None
        self._stray = ""
        return begun.removeprefix(stray) if stray and begun.startswith(stray) else text

    def _find(self, form: Form, text: str) -> int:
        """Where the form starts in the text, or -1."""
        if not form.is_opening:
            return text.find(form.start)
        n_blanks = len(text) - len(text.lstrip(BLANKS))
        is_first = not self._has_spoken and text.startswith(form.start, n_blanks)
        return n_blanks if is_first else -1

    def _n_begun(self, form: Form, text: str) -> int:
        """How many characters at the text's end may become a start of the form."""
        if not form.is_opening:
            return n_partial(text, form.start)
        begun = text.lstrip(BLANKS)
        return len(begun) * (not self._has_spoken and form.start.startswith(begun))

    def _speak(self, text: str) -> None:
        """Say a text; blanks at its end wait, as they go where a call follows."""
        spoken = text.rstrip()
        self._held = text[len(spoken) :]
        self._say(spoken)

    def _say(self, text: str) -> None:
        if text:
            self._sink.text(text.lstrip() if self._is_after_call else text)
            self._is_after_call = False
            self._has_spoken = True

    def _begin(self, form: Form) -> None:
        self._source.mark()
        self._sink.n_calls = 0
        self._form = form
        self._has_spoken |= form.holds_text
        self._reading = _whole(form, self._source, self._sink)

    def _read(self, text: str) -> str | None:
        """Read on in a form; what follows its end, or its break, is returned."""
        assert self._reading is not None
        self._source.feed(text)
        try:
            next(self._reading)
        except StopIteration:
            self._leave(is_call=True)
        except Broken:
            is_call = self._sink.cut(is_end=False)
            if self._form.holds_data and not self._sink.n_calls:
                return self._begin_data()
            self._leave(is_call=is_call)
            self._stray = self._form.end if self._is_after_call else ""
        else:
            return None
        return self._source.leave()

    def _begin_data(self) -> str:
        """The form turns out to hold data; all that has come of it is returned."""
        self._reading = None
        self._data = Body(self._form)
        self._speak(self._held + self._form.start)
        return self._source.since_mark + self._source.leave()

    def _skip(self, data: Body, text: str) -> str | None:
        """Say data; what follows its end is returned."""
        rest = data.feed(text)
        self._speak(self._held + text[: len(text) - len(rest or "")])
        if rest is not None:
            self._data = None
        return rest

    def _end(self, reading: Reading) -> None:
        """The reply ends inside a form."""
        try:
            reading.throw(Ended)
        except StopIteration:
            self._leave(is_call=True)
        except Ended:
            is_call = self._sink.cut(is_end=True) or self._sink.n_calls > 0
            self._source.skip()
            self._leave(is_call=is_call)

    def _leave(self, *, is_call: bool) -> None:
        """Go back to text. What was read of a form that holds no call is text too, with the
        blanks held before it; after a call, only what was read since."""
        self._reading = None
        self._sink.settle()
        start, self._held = self._held + self._form.start, ""
        self._is_after_call |= self._sink.n_calls > 0
        if not is_call:
            self._speak(("" if self._sink.n_calls else start) + self._source.since_mark)


def _whole(form: Form, source: Source, sink: Sink) -> Reading:
    yield from form.read(source, sink)
    if form.end:
        yield from source.need(form.end)

"""What tells a call from data, where the start of its form does not.

Guides wait for it and readings ask for it, both here, so that they agree on what is a call.
"""

from __future__ import annotations

from collections.abc import Iterable

# Those of ASCII only, so that bytes and characters are read alike.
BLANKS = " \t\n\r\v\f"
# A model may write blanks without end.
_MAX_BLANKS = 64


def find_signal(text: str, signals: Iterable[str]) -> tuple[str, int] | None:
    """Which signal the text begins with, blanks aside, and where it ends; "" as long as one may
    still come, None if none can. No signal may be the beginning of another one."""
    is_begun = False
    for signal in signals:
        at = _after(signal, text)
        if at is not None and at >= 0:
            return signal, at
        is_begun = is_begun or at is not None
    return ("", 0) if is_begun else None


def _after(signal: str, text: str) -> int | None:
    """Where the signal ends in the text; -1 if it may still come, None if it can't."""
    at = 0
    for char in signal:
        if char in BLANKS:
            continue
        rest = text[at : at + _MAX_BLANKS]
        at += len(rest) - len(rest.lstrip(BLANKS))
        if at == len(text):
            return -1
        if text[at] != char:
            return None
        at += 1
    return at

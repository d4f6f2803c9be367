"""Stop sequences in streamed text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Lets text through up to a stop sequence, and holds back what may become one.

    The match that is complete first wins; of two that end together, the longer one. The result
    does not depend on how the text is split.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = [sequence for sequence in sequences if sequence]
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Text that is free to go; nothing after a match."""
        if self.matched is not None:
            return ""
        if not self._sequences:
            return text
        text = self._held + text
        matches = [
            (start + len(sequence), start, sequence)
            for sequence in self._sequences
            if (start := text.find(sequence)) >= 0
        ]
        if matches:
            _, start, self.matched = min(matches)
            self._held = ""
            return text[:start]
        n_held = max(n_partial(text, sequence) for sequence in self._sequences)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def flush(self) -> str:
        """The held text, when nothing more will come."""
        held, self._held = self._held, ""
        return held


def n_partial(text: str, sequence: str) -> int:
    """How many characters at the text's end begin the sequence without completing it."""
    for n in range(min(len(sequence) - 1, len(text)), 0, -1):
        if text.endswith(sequence[:n]):
            return n
    return 0

"""Tools' names as other APIs take them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ratoon.router.catalogue import Tool

OPENAI_CHARACTERS = 64
ANTHROPIC_CHARACTERS = 128

_UNSENDABLE = re.compile(r"[^A-Za-z0-9_-]")
_N_FREE = 8  # characters for what tells two apart


def sendable_names(tools: Iterable[Tool], n_most: int) -> dict[str, str]:
    """Fewer characters, and ``n_most`` of them at most; names stay different."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for tool in tools:
        base = _UNSENDABLE.sub("_", tool.name)[:n_most]
        sent, n = base, 2
        while sent in taken:
            sent, n = f"{base[: n_most - _N_FREE]}_{n}", n + 1
        taken.add(sent)
        names[tool.name] = sent
    return names

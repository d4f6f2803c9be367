"""Probabilities of complete names, from those of tokens.

Names are paths of tokens. Where paths part, the model says how likely each way is; where they do
not, nothing needs to be asked. The chance of a name is the product along its path of the chances
among the ways that lead to names, so all of them add up to 1: this is how often the model would
write each name if it could write nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Path = tuple[int, ...]


class Question(NamedTuple):
    """What is to be asked of the model: behind ``path``, how likely is the next token in each of
    the groups?"""

    path: Path
    groups: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class _Node:
    path: Path
    ways: dict[int, _Node] = field(default_factory=dict)
    name: int | None = None  # the index of the name that ends here
    n_names: int = 0

    @property
    def n_ways(self) -> int:
        return len(self.ways) + (self.name is not None)


class NameTrie:
    """Names by their tokens. ``ends`` are the tokens that end a name; they matter where one name
    is the beginning of another."""

    def __init__(self, names: Sequence[Path], ends: Path) -> None:
        """``names`` are not empty and differ."""
        self.n_names = len(names)
        self.ends = ends
        self.root = _Node(())
        for index, tokens in enumerate(names):
            self._add(index, tokens)

    def _add(self, index: int, tokens: Path) -> None:
        if not tokens:
            raise ValueError("a name has no tokens")
        node = self.root
        node.n_names += 1
        for token in tokens:
            node = node.ways.setdefault(token, _Node((*node.path, token)))
            node.n_names += 1
        if node.name is not None:
            raise ValueError("two names have the same tokens")
        node.name = index


class Scoring:
    """One distribution in the making: ask what ``questions`` holds, ``tell`` the answers, and so
    on until there are none.

    Nodes of less than ``floor`` are not asked about: their chance is spread evenly over the names
    below, so that every probability is right to ``floor``. 0: all are asked about.
    """

    def __init__(self, trie: NameTrie, floor: float = 0.0) -> None:
        self._trie = trie
        self._floor = floor
        self._open: list[tuple[_Node, float]] = []
        self.probabilities = [0.0] * trie.n_names
        self._visit(trie.root, 1.0)

    @property
    def questions(self) -> list[Question]:
        return [self._question(node) for node, _ in self._open]

    def tell(self, answers: Sequence[Sequence[float]]) -> None:
        """Log probabilities for each group of each question; only their differences count."""
        asked, self._open = self._open, []
        for (node, mass), log_probs in zip(asked, answers, strict=True):
            shares = _shares(log_probs)
            for way, share in zip(node.ways.values(), shares, strict=False):
                self._visit(way, mass * share)
            if node.name is not None:
                self.probabilities[node.name] += mass * shares[-1]

    def _question(self, node: _Node) -> Question:
        groups: list[tuple[int, ...]] = [(token,) for token in node.ways]
        if node.name is not None:
            groups.append(self._trie.ends)
        return Question(node.path, tuple(groups))

    def _visit(self, node: _Node, mass: float) -> None:
        while node.n_ways == 1 and node.name is None:
            (node,) = node.ways.values()
        if node.n_ways == 1 or mass <= 0.0 or mass < self._floor:
            self._spread(node, mass / node.n_names)
        else:
            self._open.append((node, mass))

    def _spread(self, node: _Node, mass: float) -> None:
        below = [node]
        while below:
            node = below.pop()
            below += node.ways.values()
            if node.name is not None:
                self.probabilities[node.name] += mass


def _shares(log_probs: Sequence[float]) -> list[float]:
    """Normalised; even where none has a chance."""
    highest = max(log_probs)
    if highest == -math.inf:
        return [1 / len(log_probs)] * len(log_probs)
    weights = [math.exp(value - highest) for value in log_probs]
    total = sum(weights)
    return [weight / total for weight in weights]

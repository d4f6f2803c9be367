"""Probabilities of names: sums, agreement with a walk over all names, and the floor."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.router.trie import NameTrie, Path, Scoring

END = (0, 9)

names_of_tokens = st.lists(
    st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple),
    min_size=1,
    max_size=12,
    unique=True,
)


class Model:
    """Random but fixed log probabilities behind every path."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, path: Path, token: int) -> float:
        return math.log(random.Random(f"{self._seed} {path} {token}").random() + 1e-6)

    def group(self, path: Path, tokens: Sequence[int]) -> float:
        return math.log(sum(math.exp(self(path, token)) for token in tokens))


def run(scoring: Scoring, model: Model) -> list[float]:
    while questions := scoring.questions:
        scoring.tell([[model.group(q.path, group) for group in q.groups] for q in questions])
    return scoring.probabilities


def walked(names: Sequence[Path], model: Model, name: Path) -> float:
    """The chance of one name, step by step, looking at all names at each of them."""
    chance = 1.0
    for n in range(len(name) + 1):
        path = name[:n]
        left = [each for each in names if each[:n] == path]
        ways = {each[n] for each in left if len(each) > n}
        weights = {way: math.exp(model.group(path, (way,))) for way in ways}
        if path in left:
            weights[-1] = math.exp(model.group(path, END))
        chance *= weights[name[n] if n < len(name) else -1] / sum(weights.values())
    return chance


@given(names_of_tokens, st.integers())
def test_every_name_has_the_chance_of_its_path(names: list[Path], seed: int) -> None:
    model = Model(seed)
    found = run(Scoring(NameTrie(names, END)), model)
    assert sum(found) == pytest.approx(1)
    assert found == pytest.approx([walked(names, model, name) for name in names])


@given(names_of_tokens, st.integers(), st.floats(0, 1))
def test_a_floor_moves_no_chance_further_than_itself(
    names: list[Path], seed: int, floor: float
) -> None:
    model, trie = Model(seed), NameTrie(names, END)
    exact, found = run(Scoring(trie), model), run(Scoring(trie, floor), model)
    assert sum(found) == pytest.approx(1)
    assert all(abs(a - b) <= floor + 1e-9 for a, b in zip(exact, found, strict=True))


def test_only_where_names_part_the_model_is_asked() -> None:
    trie = NameTrie([(1, 2, 3), (1, 2, 4, 5), (6,)], END)
    scoring = Scoring(trie)
    assert [q.path for q in scoring.questions] == [()]
    scoring.tell([[math.log(0.5), math.log(0.5)]])
    assert [q.path for q in scoring.questions] == [(1, 2)]
    assert scoring.questions[0].groups == ((3,), (4,))
    scoring.tell([[math.log(0.75), math.log(0.25)]])
    assert not scoring.questions
    assert scoring.probabilities == pytest.approx([0.375, 0.125, 0.5])


def test_a_name_that_begins_another_is_told_by_its_end() -> None:
    scoring = Scoring(NameTrie([(1,), (1, 2)], END))
    assert scoring.questions[0].path == (1,)
    assert scoring.questions[0].groups == ((2,), END)
    scoring.tell([[math.log(0.2), math.log(0.1)]])
    assert scoring.probabilities == pytest.approx([1 / 3, 2 / 3])


def test_a_single_name_is_certain_and_nothing_is_asked() -> None:
    scoring = Scoring(NameTrie([(1, 2)], END))
    assert not scoring.questions
    assert scoring.probabilities == [1.0]


def test_names_that_the_model_can_not_say_are_equally_likely() -> None:
    scoring = Scoring(NameTrie([(1,), (2,)], END))
    scoring.tell([[-math.inf, -math.inf]])
    assert scoring.probabilities == [0.5, 0.5]


@pytest.mark.parametrize("names", [[()], [(1, 2), (1, 2)]])
def test_names_must_be_told_apart(names: list[Path]) -> None:
    with pytest.raises(ValueError, match="name"):
        NameTrie(names, END)

"""The radix tree against a plain dictionary of prefixes."""

from __future__ import annotations

import random

import pytest

from ratoon.cache.placement import Snapshot
from ratoon.cache.radix import Node, RadixTree, common_prefix


def path(node: Node) -> list[int]:
    parts = [each.edge for each in node.ancestors()]
    return [token for edge in reversed(parts) for token in edge]


class Oracle:
    """Every marked prefix, as a tuple."""

    def __init__(self) -> None:
        self.marked: set[tuple[int, ...]] = set()

    def longest(self, tokens: list[int]) -> int:
        best = 0
        for each in self.marked:
            n = 0
            while n < min(len(each), len(tokens)) and each[n] == tokens[n]:
                n += 1
            best = max(best, n)
        return best


def random_tokens(rng: random.Random, known: set[tuple[int, ...]]) -> list[int]:
    head: list[int] = []
    if known and rng.random() < 0.8:
        other = rng.choice(sorted(known))
        head = list(other[: rng.randint(0, len(other))])
    return head + [rng.randint(0, 2) for _ in range(rng.randint(0 if head else 1, 9))]


@pytest.mark.parametrize("seed", range(30))
def test_agrees_with_a_dictionary(seed: int) -> None:
    rng = random.Random(seed)
    tree, oracle = RadixTree(), Oracle()
    nodes: dict[tuple[int, ...], Node] = {}
    for _ in range(200):
        tokens = random_tokens(rng, oracle.marked)
        if rng.random() < 0.6:
            node = tree.insert(tokens)
            assert path(node) == tokens
            node.snapshot = Snapshot(len(tokens), 1)
            nodes[tuple(tokens)] = node
            oracle.marked.add(tuple(tokens))
        elif nodes:
            key = rng.choice(sorted(nodes))
            node = nodes.pop(key)
            oracle.marked.discard(key)
            node.snapshot = None
            tree.prune(node)
        tree.check()
        probe = random_tokens(rng, oracle.marked)
        assert tree.match(probe).n_tokens == oracle.longest(probe)
        for key, node in nodes.items():
            assert path(node) == list(key)


@pytest.mark.parametrize("seed", range(30))
def test_a_bookmark_is_lost_with_the_last_state_that_reaches_it(seed: int) -> None:
    rng = random.Random(seed)
    tree, oracle = RadixTree(), Oracle()
    nodes: dict[tuple[int, ...], Node] = {}
    bookmarks: dict[bytes, tuple[int, ...]] = {}
    for _ in range(200):
        if nodes and rng.random() < 0.5:
            key = rng.choice(sorted(nodes))
            node = nodes.pop(key)
            oracle.marked.discard(key)
            node.snapshot = None
            tree.prune(node)
        else:
            tokens = random_tokens(rng, oracle.marked)
            node = tree.insert(tokens)
            node.snapshot = Snapshot(len(tokens), 1)
            if rng.random() < 0.7:
                node.bookmarks[len(tokens)] = bytes(tokens)
                bookmarks[bytes(tokens)] = tuple(tokens)
            nodes[tuple(tokens)] = node
            oracle.marked.add(tuple(tokens))
        tree.check()
        out_of_reach = {b for b, p in bookmarks.items() if oracle.longest(list(p)) < len(p)}
        assert sorted(tree.lost) == sorted(out_of_reach)
        tree.lost.clear()
        for bookmark in out_of_reach:
            del bookmarks[bookmark]


def test_a_locked_path_stays() -> None:
    tree = RadixTree()
    node = tree.insert([1, 2, 3])
    tree.lock(node)
    tree.prune(node)
    other = tree.insert([1, 2, 4])
    tree.lock(other)
    assert tree.match([1, 2, 3, 9]).n_tokens == 3
    tree.check()
    tree.unlock(node)
    tree.prune(node)
    tree.check()
    assert tree.match([1, 2, 3]).n_tokens == 2
    tree.unlock(other)
    tree.prune(other)
    assert not tree.root.children


def test_every_state_below_a_match_begins_with_it() -> None:
    tree = RadixTree()
    for tokens in ([1, 2, 3, 4], [1, 2, 3, 5], [1, 2]):
        tree.insert(tokens).snapshot = Snapshot(len(tokens), 1)
    match = tree.match([1, 2, 3, 9])
    assert match.n_tokens == 3
    assert all(path(node)[:3] == [1, 2, 3] for node in match.node.subtree())


@pytest.mark.parametrize("seed", range(20))
def test_common_prefix_counts_equal_tokens(seed: int) -> None:
    rng = random.Random(seed)
    left = [rng.randint(0, 3) for _ in range(rng.randint(0, 500))]
    cut = rng.randint(0, len(left))
    right = [9, 9] + left[:cut] + [7] * rng.randint(0, 300)
    n = 0
    while n < min(len(left), len(right) - 2) and left[n] == right[2 + n]:
        n += 1
    assert common_prefix(left, right, 2) == n

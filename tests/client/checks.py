"""What must hold of the requests of any session in which nothing went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.client.recorder import Record

REUSED = 0.99  # of the tokens that could be


def check_session(records: list[Record]) -> None:
    """Every request extends its agent's last one, is computed but for what is new, and is sent
    once, as it was meant."""
    check_extends(records)
    check_calm(records)


def check_extends(records: list[Record]) -> None:
    """All that an agent said and heard begins its next prompt, token by token, and is reused."""
    for number, record in enumerate(records):
        check_reused(record)
        lost = record.n_known - record.n_shared
        assert not lost, f"request {number} lost {lost} of {record.n_known} tokens: {record}"


def check_reused(record: Record) -> None:
    assert record.n_cached >= REUSED * record.n_shared, f"computed again: {record}"


def check_calm(records: list[Record]) -> None:
    """No request is repeated, no feature given up, no text moved because of an answer."""
    assert [record.status for record in records] == [200] * len(records)
    assert [record.outcome for record in records] == ["stop"] * len(records)
    assert all(record.stream for record in records)
    assert all(n == 1 for n in Counter(record.digest for record in records).values())
    for of_agent in by_agent(records):
        for before, after in pairwise(of_agent):
            assert set(before.betas) <= set(after.betas), after
            assert before.n_system <= after.n_system, after
            assert before.n_opening == after.n_opening, after
            assert before.n_messages < after.n_messages, after


def by_agent(records: Iterable[Record]) -> list[list[Record]]:
    """The requests of each agent; those of the main one first."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.session, record.agent), []).append(record)
    return [found[key] for key in sorted(found, key=lambda key: key[1])]

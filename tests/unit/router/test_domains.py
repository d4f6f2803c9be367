"""Who leaves when there are too many, and what is another tenant's."""

from __future__ import annotations

import itertools

import pytest

from ratoon.errors import NotFound
from ratoon.router.catalogue import Catalogue, parse_tools
from ratoon.router.domains import Domains
from ratoon.router.prompt import DomainPrompt
from ratoon.router.trie import NameTrie
from tests.unit.router.shelf import Shelf


def prompt(name: str = "get_order") -> DomainPrompt:
    catalogue = Catalogue(parse_tools([{"name": name}]))
    return DomainPrompt(catalogue, "none", [1, 2], NameTrie([(1,), (2,)], (0,)), True)


def domains(n: int, records: Shelf | None = None) -> Domains:
    return Domains(n, records, clock=map(float, itertools.count()).__next__)


def ids(found: Domains, tenant: str = "") -> list[str]:
    return [domain.id for domain in found.of(tenant)]


def test_the_least_recently_used_leaves_not_the_first_that_came() -> None:
    found = domains(2, Shelf())
    first = found.add("", "a", prompt())
    found.add("", "b", prompt())
    found.use(first)
    found.add("", "c", prompt())
    assert ids(found) == ["a", "c"]
    with pytest.raises(NotFound):
        found.get("", "b")


def test_what_outlives_the_process_leaves_in_the_same_order() -> None:
    records = Shelf()
    found = domains(3, records)
    first = found.add("", "a", prompt())
    found.add("", "b", prompt())
    found.use(first)
    assert [name for _, name, _ in found.saved()] == ["b", "a"]
    found.remove("", "b")
    assert [name for _, name, _ in domains(3, records).saved()] == ["a"]


def test_each_tenant_has_room_and_ids_of_its_own() -> None:
    found = domains(1)
    found.add("left", "shop", prompt("a"))
    found.add("right", "shop", prompt("b"))
    assert found.get("left", "shop").catalogue.tools[0].name == "a"
    found.remove("left", "shop")
    assert ids(found, "right") == ["shop"]
    with pytest.raises(NotFound):
        found.remove("left", "shop")


def test_those_for_all_take_no_room() -> None:
    found = domains(1)
    for name in ("a", "b"):
        found.add("", name, prompt(), is_shared=True)
    found.add("", "c", prompt())
    found.add("left", "d", prompt())
    assert ids(found) == ["a", "b", "c"]
    assert ids(found, "left") == ["a", "b", "d"]


def test_a_catalogue_is_held_as_long_as_a_domain_has_it() -> None:
    found = domains(9)
    found.add("left", "a", prompt())
    found.add("right", "b", prompt())
    found.remove("left", "a")
    assert found.holds(prompt())
    found.remove("right", "b")
    assert not found.holds(prompt())


def test_what_can_not_be_read_back_is_removed() -> None:
    records = Shelf()
    domains(9, records).add("", "a", prompt())
    records.data["/b"] = b'{"version": 99}'
    records.data["/c"] = b"\xff"
    records.data["/d"] = b'{"version": 1, "tools": [{"name": 3}], "system_prompt": ""}'
    assert [name for _, name, _ in domains(9, records).saved()] == ["a"]
    assert list(records.data) == ["/a"]

"""Who leaves when there are too many, and what is another tenant's."""

from __future__ import annotations

import itertools

import pytest

from ratoon.errors import NotFound
from ratoon.router.catalogue import Catalogue, parse_tools
from ratoon.router.domains import Domain, Domains, dump
from ratoon.router.prompt import DomainPrompt
from ratoon.router.trie import NameTrie
from tests.unit.router.shelf import Shelf


def prompt(name: str = "get_order") -> DomainPrompt:
    catalogue = Catalogue(parse_tools([{"name": name}]), "Ä")
    trie = NameTrie([(1,), (2,)], (0,))
    return DomainPrompt(catalogue, catalogue.digest(), "none", [1, 2], trie, True)


def add(
    found: Domains, tenant: str, name: str, tool: str = "get_order", *, is_shared: bool = False
) -> Domain:
    made = prompt(tool)
    return found.add(tenant, name, made, dump(made.catalogue), is_shared=is_shared)


def domains(n: int, records: Shelf | None = None) -> Domains:
    return Domains(n, records, clock=map(float, itertools.count()).__next__)


def ids(found: Domains, tenant: str = "") -> list[str]:
    return [domain.id for domain in found.of(tenant)]


def test_the_least_recently_used_leaves_not_the_first_that_came() -> None:
    found = domains(2, Shelf())
    first = add(found, "", "a")
    add(found, "", "b")
    found.use(first)
    add(found, "", "c")
    assert ids(found) == ["a", "c"]
    with pytest.raises(NotFound):
        found.get("", "b")


def test_what_outlives_the_process_leaves_in_the_same_order() -> None:
    records = Shelf()
    found = domains(3, records)
    first = add(found, "", "a")
    add(found, "", "b")
    found.use(first)
    assert [name for _, name, _ in found.saved()] == ["b", "a"]
    found.remove("", "b")
    assert [name for _, name, _ in domains(3, records).saved()] == ["a"]


def test_each_tenant_has_room_and_ids_of_its_own() -> None:
    found = domains(1)
    add(found, "left", "shop", "a")
    add(found, "right", "shop", "b")
    assert found.get("left", "shop").catalogue.tools[0].name == "a"
    found.remove("left", "shop")
    assert ids(found, "right") == ["shop"]
    with pytest.raises(NotFound):
        found.remove("left", "shop")


def test_those_for_all_take_no_room() -> None:
    found = domains(1)
    for name in ("a", "b"):
        add(found, "", name, is_shared=True)
    add(found, "", "c")
    add(found, "left", "d")
    assert ids(found) == ["a", "b", "c"]
    assert ids(found, "left") == ["a", "b", "d"]


def test_a_tenant_holds_what_it_may_ask_and_hears_of_no_other() -> None:
    found = domains(9)
    for tenant, name in (("left", "a"), ("left", "b"), ("right", "c")):
        add(found, tenant, name)
    add(found, "", "d", "for_all", is_shared=True)
    add(found, "", "e", "for_none")
    digest = prompt().digest
    found.remove("left", "a")
    assert found.holds("left", digest)
    found.remove("left", "b")
    assert not found.holds("left", digest)
    assert found.holds("right", digest)
    assert found.holds("left", prompt("for_all").digest)
    assert not found.holds("left", prompt("for_none").digest)
    assert [domain.id for domain in found.all()] == ["c", "d", "e"]


def test_a_catalogue_comes_back_as_it_was() -> None:
    records = Shelf()
    add(domains(9, records), "left", "a")
    assert list(domains(9, records).saved()) == [("left", "a", prompt().catalogue)]


def test_what_can_not_be_read_back_is_removed() -> None:
    records = Shelf()
    add(domains(9, records), "", "a")
    records.data["/b"] = b'{"version": 99}'
    records.data["/c"] = b"\xff"
    records.data["/d"] = b'{"version": 1, "tools": [{"name": 3}], "system_prompt": ""}'
    assert [name for _, name, _ in domains(9, records).saved()] == ["a"]
    assert list(records.data) == ["/a"]

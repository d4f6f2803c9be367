"""Finding tools by words and by patterns."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon import wire
from ratoon.chat.search import LIMIT_S, MAX_FOUND, MAX_QUERY, search
from ratoon.chat.typed import MAX_PATTERN, Search


def tool(name: str, description: str = "", **arguments: str) -> wire.Tool:
    properties = {key: {"type": "string", "description": told} for key, told in arguments.items()}
    schema = {"type": "object", "properties": properties}
    return wire.Tool(name=name, description=description, input_schema=schema)


TOOLS = [
    tool("get_weather", "Tells the weather of a city.", city="Name of the city"),
    tool("createIssue", "Opens a ticket.", title="Headline", labels="Words to sort by"),
    tool("list_issues", "All tickets of a repository."),
    tool("send_mail", "Sends a letter.", recipient="Whom it goes to"),
    tool("lire_fichier", "Lit un fichier élevé.", chemin="Où il est"),
    *(tool(f"noise_{i}", "Nothing of interest here at all.") for i in range(20)),
]


def names(kind: Search, value: str, tools: list[wire.Tool] | None = None) -> list[str]:
    found = search(kind, {"query" if kind == "bm25" else "pattern": value}, tools or TOOLS)
    assert isinstance(found, wire.FoundTools), found
    return [reference.tool_name for reference in found.tool_references]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("weather in a city", "get_weather"),
        ("create an issue", "createIssue"),
        ("issues of a repository", "list_issues"),
        ("recipient", "send_mail"),
        ("headline of the ticket", "createIssue"),
        ("élevé", "lire_fichier"),
        ("ISSUE", "createIssue"),
    ],
)
def test_the_best_match_comes_first(query: str, best: str) -> None:
    found = names("bm25", query)
    assert best in found[: 2 if query == "ISSUE" else 1]


def test_a_rare_word_outweighs_common_ones() -> None:
    assert names("bm25", "nothing of interest here letter")[0] == "send_mail"


def test_words_that_occur_nowhere_find_nothing() -> None:
    assert names("bm25", "xylophone") == []
    assert names("bm25", "?!") == []


def test_at_most_five_are_found_in_the_order_given() -> None:
    assert names("bm25", "noise") == [f"noise_{i}" for i in range(MAX_FOUND)]
    assert names("regex", "^noise") == [f"noise_{i}" for i in range(MAX_FOUND)]


def test_long_descriptions_do_not_win_by_length() -> None:
    tools = [tool("long", "letter " + "word " * 500), tool("short", "letter")]
    assert names("bm25", "letter", tools) == ["short", "long"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("issue", ["list_issues"]),
        ("(?i)issue", ["createIssue", "list_issues"]),
        ("^get_.*r$", ["get_weather"]),
        ("recipient|Headline", ["createIssue", "send_mail"]),
        ("Whom it", ["send_mail"]),
        ("ticket", ["createIssue", "list_issues"]),
        ("mail|letter", ["send_mail"]),
        ("nowhere", []),
    ],
)
def test_patterns(pattern: str, expected: list[str]) -> None:
    assert names("regex", pattern) == expected


def test_a_match_of_the_name_comes_first() -> None:
    tools = [tool("a", "mail"), tool("mail")]
    assert names("regex", "mail", tools) == ["mail", "a"]


def test_nested_arguments_are_looked_at() -> None:
    inner = {"type": "object", "properties": {"zip": {"description": "postcode"}}}
    schema = {"properties": {"places": {"type": "array", "items": {"anyOf": [inner]}}}}
    nested = [wire.Tool(name="n", input_schema=schema)]
    for word in ("places", "zip", "postcode"):
        assert names("regex", word, nested) == ["n"]


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("bm25", {}),
        ("bm25", {"query": 5}),
        ("bm25", {"query": "  "}),
        ("bm25", {"query": "x" * (MAX_QUERY + 1)}),
        ("bm25", {"pattern": "x"}),
        ("regex", {"pattern": None}),
        ("regex", {"pattern": "x" * (MAX_PATTERN + 1)}),
        ("regex", {"pattern": "("}),
        ("regex", {"pattern": "(?=a)b"}),
        ("regex", {"pattern": r"(a)\1"}),
        ("regex", {"pattern": "((a{100}){100}){100}"}),
    ],
)
def test_inputs_that_are_no_query(kind: Search, arguments: dict[str, Any]) -> None:
    found = search(kind, arguments, TOOLS)
    assert isinstance(found, wire.SearchError)
    assert found.error_code == "invalid_tool_input"
    assert found.error_message


@pytest.mark.parametrize(
    "pattern", [r"(x+x+)+y", r"(x*)*$y", r"(x|x)*y", r"^(\w+\s?)*$z", "(.*)*" * 30]
)
def test_no_pattern_explodes(pattern: str) -> None:
    """A backtracking engine would need longer than the universe has existed."""
    assert names("regex", pattern, [tool("t", "x" * 4000)]) in ([], ["t"])


def test_matching_ends_in_time() -> None:
    clock = itertools.count(0, LIMIT_S).__next__
    found = search("regex", {"pattern": "x"}, TOOLS, clock)
    assert isinstance(found, wire.SearchError)
    assert found.error_code == "execution_time_exceeded"


@given(st.text(max_size=300), st.sampled_from(["bm25", "regex"]))
def test_whatever_a_model_writes_gets_an_answer(value: str, kind: Search) -> None:
    search(kind, {"query": value, "pattern": value}, TOOLS)

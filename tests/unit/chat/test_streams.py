"""The stages below the reply parser: bytes to text, and stop sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratoon.chat.detokenizer import Detokenizer
from ratoon.chat.stop import StopMatcher, n_partial


@given(st.binary(max_size=40), st.lists(st.integers(0, 40)))
def test_any_split_of_bytes_gives_the_same_text(data: bytes, cuts: list[int]) -> None:
    detokenizer = Detokenizer()
    edges = [0, *sorted(cuts), len(data)]
    text = "".join(detokenizer.feed(data[a:b]) for a, b in zip(edges, edges[1:], strict=False))
    assert text + detokenizer.flush() == data.decode("utf-8", "replace")


def test_a_character_waits_for_its_last_byte() -> None:
    detokenizer = Detokenizer()
    assert [detokenizer.feed(bytes([byte])) for byte in "é€".encode()] == ["", "é", "", "", "€"]
    assert detokenizer.flush() == ""


def ended(text: str, sequences: list[str]) -> tuple[str, str | None]:
    """The oracle: look for a stop sequence after every character."""
    for end in range(len(text) + 1):
        found = [s for s in sequences if s and text[:end].endswith(s)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.text("abc", max_size=20),
    st.lists(st.text("abc", max_size=4), max_size=3),
    st.lists(st.integers(0, 20)),
)
def test_any_split_stops_at_the_same_place(
    text: str, sequences: list[str], cuts: list[int]
) -> None:
    matcher = StopMatcher(sequences)
    edges = [0, *sorted(cuts), len(text)]
    passed = [matcher.feed(text[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    passed.append(matcher.flush())
    assert ("".join(passed), matcher.matched) == ended(text, sequences)


def test_only_what_may_become_a_stop_is_held() -> None:
    matcher = StopMatcher(["\n\nHuman:"])
    assert matcher.feed("hello\n") == "hello"
    assert matcher.feed("world\n\nHum") == "\nworld"
    assert matcher.feed("an") == ""
    assert matcher.feed(": more") == ""
    assert matcher.matched == "\n\nHuman:"
    assert matcher.feed("ignored") == ""
    assert matcher.flush() == ""


@pytest.mark.parametrize(("text", "n"), [("", 0), ("ab", 2), ("xa", 1), ("abc", 0), ("xb", 0)])
def test_n_partial(text: str, n: int) -> None:
    assert n_partial(text, "abc") == n

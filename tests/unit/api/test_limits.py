"""The sliding window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratoon.api.limits import MAX_NAMES, WINDOW_S, SlidingWindow


def test_a_request_too_many_waits_for_the_first_to_be_forgotten() -> None:
    window = SlidingWindow()
    assert [window.take("a", 2, t).remaining for t in (0.0, 10.0)] == [1, 0]
    refused = window.take("a", 2, 20.0)
    assert (refused.is_allowed, refused.remaining, refused.reset_s) == (False, 0, 40)
    assert window.take("b", 2, 20.0).is_allowed
    assert window.take("a", 2, WINDOW_S).is_allowed
    assert not window.take("a", 2, WINDOW_S + 9).is_allowed


@given(st.lists(st.floats(0, 300), max_size=200).map(sorted), st.integers(1, 20))
def test_no_minute_has_more_than_the_limit(times: list[float], limit: int) -> None:
    window = SlidingWindow()
    let_in = [t for t in times if window.take("a", limit, t).is_allowed]
    for start in let_in:
        assert sum(start <= t < start + WINDOW_S for t in let_in) <= limit


def test_names_are_bounded() -> None:
    window = SlidingWindow()
    for n in range(MAX_NAMES + 5):
        window.take(str(n), 1, 0.0)
    assert window.take("0", 1, 0.0).is_allowed  # forgotten
    assert not window.take(str(MAX_NAMES), 1, 0.0).is_allowed

"""Metrics without a server."""

from __future__ import annotations

import pytest

from ratoon.metrics import KeyUse, Metrics


def lines(metrics: Metrics) -> set[str]:
    return set(metrics.render().decode().splitlines())


def test_two_servers_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.count_error("api_error")
    assert 'ratoon_errors_total{type="api_error"} 1.0' in lines(one)
    assert not any("api_error" in line for line in lines(other))


def test_queries_are_counted_by_what_was_kept() -> None:
    metrics = Metrics()
    for name, is_hit in (("one", True), ("one", False), ("two", True), ("one", True)):
        metrics.observe_route(name, 0.1, has_tool=is_hit, is_hit=is_hit)
    metrics.observe_key("one", 200, 0.5)
    metrics.observe_key("one", 404, 0.5)
    assert {
        'ratoon_route_prefixes_total{outcome="hit"} 3.0',
        'ratoon_route_prefixes_total{outcome="miss"} 1.0',
        'ratoon_routes_total{choice="none"} 1.0',
    } <= lines(metrics)
    assert metrics.key_uses == {"one": KeyUse(2, 1, 1.0, 2, 1), "two": KeyUse(0, 0, 0.0, 1, 0)}


def test_replies() -> None:
    metrics = Metrics()
    metrics.count_replays({"replayed": 2, "different": 1})
    metrics.count_replays({"replayed": 1})
    metrics.set_replies(n_replies=4, n_bytes=5000)
    assert {
        'ratoon_replays_total{outcome="replayed"} 3.0',
        'ratoon_replays_total{outcome="different"} 1.0',
        'ratoon_cache{figure="replies"} 4.0',
        'ratoon_tier_bytes{tier="replies"} 5000.0',
    } <= lines(metrics)


@pytest.mark.parametrize("view", [{}, {"cache": None}, {"running": 3, "waiting": None}])
def test_a_view_without_figures_changes_nothing(view: dict[str, object]) -> None:
    metrics = Metrics()
    before = lines(metrics)
    metrics.set_state(view)
    assert lines(metrics) == before


def test_figures_find_their_gauge() -> None:
    metrics = Metrics()
    cache = {"disk_bytes": 5, "disk_tokens": 6, "disk_max_bytes": 7, "compactions": 1}
    metrics.set_state({"running": [1], "waiting": [1, 2], "cache": cache})
    assert {
        'ratoon_active_requests{state="running"} 1.0',
        'ratoon_active_requests{state="waiting"} 2.0',
        'ratoon_tier_bytes{tier="disk"} 5.0',
        'ratoon_tier_tokens{tier="disk"} 6.0',
        'ratoon_cache{figure="disk_max_bytes"} 7.0',
        'ratoon_cache{figure="compactions"} 1.0',
    } <= lines(metrics)

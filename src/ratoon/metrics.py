"""What Ratoon counts, in Prometheus' terms. A leaf: it knows no other part of the package.

Each ``Metrics`` has its own registry, so two servers in one process never mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "ratoon_"
_TTFT_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_ITL_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_QUEUE_S = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0)


@dataclass(slots=True)
class KeyUse:
    """What was done with one key; ``seconds`` until all answers began. A hit is a query that was
    routed from what was kept of its whole catalogue, a miss any other."""

    n_requests: int = 0
    n_errors: int = 0
    seconds: float = 0.0
    n_hits: int = 0
    n_misses: int = 0


class Metrics:
    """Counters and histograms are fed as things happen; gauges are set when somebody looks."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._uses: dict[str, KeyUse] = {}
        self._ttft = self._histogram("ttft_seconds", "From arrival to the first token.", _TTFT_S)
        self._itl = self._histogram("itl_seconds", "Between two tokens of one reply.", _ITL_S)
        self._queue = self._histogram("queue_seconds", "From arrival to admission.", _QUEUE_S)
        self._prompt_tokens = self._counter(
            "prompt_tokens",
            "Prompt tokens, by serving layer and by what they cost.",
            "layer",
            "cost",
        )
        self._output_tokens = self._counter("output_tokens", "Tokens sampled.")
        self._requests = self._counter("requests", "Requests that ended.", "stop_reason")
        self._errors = self._counter("errors", "Requests that failed, by error type.", "type")
        self._normalisations = self._counter(
            "normalisations", "Times a prompt rule changed a prompt.", "rule"
        )
        self._replays = self._counter(
            "replays", "Assistant messages in prompts, by what became of them.", "outcome"
        )
        self._thoughts = self._counter(
            "thinking_blocks", "Reasoning in requests, by whose signature it has.", "signature"
        )
        self._routes = self._counter("routes", "Queries routed, by what was chosen.", "choice")
        self._route_prefixes = self._counter(
            "route_prefixes", "Queries routed, by whether their catalogue was kept.", "outcome"
        )
        self._route_s = self._histogram("route_seconds", "From a query to its tool.", _TTFT_S)
        self._key_requests = self._counter(
            "key_requests", "Requests, by the key's name and the answer's status.", "key", "status"
        )
        self._key_s = self._counter(
            "key_seconds", "Time until answers began, by the key's name.", "key"
        )
        self._active = self._gauge("active_requests", "Requests in the engine.", "state")
        self._tier_bytes = self._gauge("tier_bytes", "Bytes of saved state.", "tier")
        self._tier_tokens = self._gauge("tier_tokens", "Tokens with saved state.", "tier")
        self._cache = self._gauge("cache", "Other figures of the prefix cache.", "figure")

    def observe_started(self, queue_s: float, layer: str, n_cached: int, n_forwarded: int) -> None:
        """A request was admitted: ``n_cached`` prompt tokens were reused from ``layer``."""
        self._queue.observe(queue_s)
        self._prompt_tokens.labels(layer, "reused").inc(n_cached)
        self._prompt_tokens.labels(layer, "forwarded").inc(n_forwarded)

    def observe_route(self, name: str, seconds: float, *, has_tool: bool, is_hit: bool) -> None:
        """A query was routed, for the tenant of this name, which is its key's."""
        self._routes.labels("tool" if has_tool else "none").inc()
        self._route_prefixes.labels("hit" if is_hit else "miss").inc()
        self._route_s.observe(seconds)
        use = self._uses.setdefault(name, KeyUse())
        use.n_hits += is_hit
        use.n_misses += not is_hit

    def observe_key(self, name: str, status: int, seconds: float) -> None:
        """A request with a key got its answer; ``name`` is the key's, never the key."""
        self._key_requests.labels(name, str(status)).inc()
        self._key_s.labels(name).inc(seconds)
        use = self._uses.setdefault(name, KeyUse())
        use.n_requests += 1
        use.n_errors += status >= 400
        use.seconds += seconds

    @property
    def key_uses(self) -> Mapping[str, KeyUse]:
        """By the key's name; where nobody needs a key, all queries are under none."""
        return dict(self._uses)

    def observe_first_token(self, ttft_s: float) -> None:
        self._ttft.observe(ttft_s)

    def observe_next_token(self, itl_s: float) -> None:
        self._itl.observe(itl_s)

    def count_request(self, stop_reason: str, n_output: int) -> None:
        self._requests.labels(stop_reason).inc()
        self._output_tokens.inc(n_output)

    def count_error(self, kind: str) -> None:
        self._errors.labels(kind).inc()

    def count_normalisations(self, fired: Mapping[str, int]) -> None:
        for rule, n_times in fired.items():
            self._normalisations.labels(rule).inc(n_times)

    def count_replays(self, outcomes: Mapping[str, int]) -> None:
        for outcome, n_times in outcomes.items():
            self._replays.labels(outcome).inc(n_times)

    def count_thoughts(self, n_own: int, n_foreign: int) -> None:
        """Reasoning came back in a request, signed by us or by somebody else."""
        self._thoughts.labels("own").inc(n_own)
        self._thoughts.labels("foreign").inc(n_foreign)

    def set_replies(self, n_replies: int, n_bytes: int) -> None:
        """Set the gauges of the replies that are remembered."""
        self._cache.labels("replies").set(n_replies)
        self._tier_bytes.labels("replies").set(n_bytes)

    def set_state(self, view: Mapping[str, object]) -> None:
        """Set the gauges from the engine's own view of itself; a figure it lacks is left alone."""
        for state in ("running", "waiting"):
            requests = view.get(state)
            if isinstance(requests, Sized):
                self._active.labels(state).set(len(requests))
        figures = view.get("cache")
        if isinstance(figures, Mapping):
            for name, value in figures.items():
                self._set_figure(str(name), value)

    def _set_figure(self, name: str, value: float) -> None:
        """``host_bytes`` and the like belong to a tier; all others keep their name."""
        tier, _, unit = name.partition("_")
        match unit:
            case "bytes":
                self._tier_bytes.labels(tier).set(value)
            case "tokens":
                self._tier_tokens.labels(tier).set(value)
            case _:
                self._cache.labels(name).set(value)

    def render(self) -> bytes:
        """The Prometheus text page."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, help_text: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(_PREFIX + name, help_text, buckets=bounds, registry=self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(_PREFIX + name, help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(_PREFIX + name, help_text, labels, registry=self.registry)

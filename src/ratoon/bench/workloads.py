"""What is done with a server: sessions that are replayed, and what they are to show.

Every session is made up anew for each pair, so no server has seen it; replies are cut at a few
tokens, as the next request of a session does not use them.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratoon.bench.pairs import Bar, Figures, Metric, TrialFailed
from ratoon.bench.replay import Report, Result, replay
from ratoon.bench.sessions import Record, Session, Sizes, prose
from ratoon.bench.shape import Script
from ratoon.bench.sides import Server, Side, options_for
from ratoon.bench.trace import Recorded, parse

MAX_TOKENS = 8
WARM_UP_WORDS = 200
# The shape of a real client's requests with its long texts cut to a quarter: about 6,000 tokens of
# a main agent's, most of them its tools', and rounds of about 200.
CLIENT = Sizes(
    prompt=600,
    sub_prompt=1000,
    tool=640,
    context=90,
    task=40,
    late_run=420,
    note=60,
    result=120,
    directive=225,
)

# as long as a real client's
LONG_CLIENT = CLIENT.with_long_prompts(4)

WALL = Metric("wall_s", "wall")
SLOWEST = Metric("slowest_first_token_s", "slowest first token")
TYPICAL = Metric("first_token_s", "median first token")
FORWARDED = Metric("forwarded", "prompt tokens computed", "tokens")
PROMPTED = Metric("prompt", "prompt tokens", "tokens")
REPLIED = Metric("output", "reply tokens", "tokens")
CONTEXT_SPEED = Metric(
    "context_speed_ratio", "context tokens per second, reused over cold", "x", True
)
WORK = (PROMPTED, FORWARDED, REPLIED)


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded trace, from a server that has nothing."""

    name: str
    trace: Sequence[Recorded]
    bars: Sequence[Bar] = ()
    max_tokens: int = MAX_TOKENS
    metrics: Sequence[Metric] = (WALL, SLOWEST, TYPICAL, CONTEXT_SPEED, *WORK)

    @property
    def title(self) -> str:
        n_agents = len({request.agent for request in self.trace})
        return f"{len(self.trace)} recorded requests of {n_agents} agents"

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        with side.running(folder) as server:
            warm_up(server)
            return totals(play(server, self.trace, self.max_tokens))


@dataclass(frozen=True, slots=True)
class Forks:
    """A parent's prompt, then forks of it side by side that share all but their directive."""

    n_forks: int = 3
    sizes: Sizes = CLIENT
    bars: Sequence[Bar] = (Bar("wall_s", 0.35), Bar("slowest_first_token_s", 0.15))
    name: str = "forks"
    metrics: Sequence[Metric] = (
        WALL,
        Metric("forks_wall_s", "wall of the forks alone"),
        SLOWEST,
        *WORK,
    )

    @property
    def title(self) -> str:
        return f"a parent and {self.n_forks} forks of it side by side"

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        script = Script()
        main = Session(seed, self.sizes, defers=False).main()
        first = script.ask(main)
        for n in range(self.n_forks):
            script.ask(main.fork(f"fork {n}", self.sizes.directive), first)
        with side.running(folder) as server:
            warm_up(server)
            report = play(server, parse(script.records))
        forks = report.results[1:]
        return totals(report) | {
            "forks_wall_s": max(end_s(one) for one in forks) - min(one.began_s for one in forks),
            "slowest_first_token_s": max(first_token_s(one) for one in forks),
        }


@dataclass(frozen=True, slots=True)
class SecondSession:
    """A session that begins in a repository where another one has worked before.

    ``has_billing``: system prompts begin with the client's billing line, which differs between
    sessions; the client can be told to leave it out.
    """

    has_billing: bool = True
    sizes: Sizes = CLIENT
    metrics: Sequence[Metric] = (
        Metric("first_token_s", "first token of the second session"),
        Metric("cold_first_token_s", "first token of the first session"),
        *WORK,
    )

    @property
    def bars(self) -> Sequence[Bar]:
        # of what clients send by themselves; without the line, most of a prompt is known to both
        return (Bar("first_token_s", 0.10),) if self.has_billing else ()

    @property
    def name(self) -> str:
        return "repo" if self.has_billing else "repo-no-billing"

    @property
    def title(self) -> str:
        billing = "" if self.has_billing else ", without the billing line"
        return f"the second session in the same repository{billing}"

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        script = Script()
        one, two = (
            Session(2 * seed + n, self.sizes, repo=-1 - seed, defers=False).main() for n in (0, 1)
        )
        last = script.work(one, 2, script.ask(one))
        script.ask(two, last)
        with side.running(folder) as server:
            warm_up(server)
            report = play(server, parse(self._sent(script.records)))
        figures = totals(report)
        return figures | {
            "first_token_s": first_token_s(report.results[-1]),
            "cold_first_token_s": first_token_s(report.results[0]),
        }

    def _sent(self, records: list[Record]) -> list[Record]:
        return records if self.has_billing else [without_billing(record) for record in records]


@dataclass(frozen=True, slots=True)
class Restart:
    """Sessions that go on after the server was stopped by a signal and started again."""

    n_sessions: int = 1
    sizes: Sizes = CLIENT
    bars: Sequence[Bar] = (Bar("first_token_s", 0.10),)
    name: str = "restart"
    metrics: Sequence[Metric] = (
        Metric("first_token_s", "median first token after a restart"),
        SLOWEST,
        Metric("cold_first_token_s", "median first token before it"),
        *WORK,
    )

    @property
    def title(self) -> str:
        return f"{self.n_sessions} sessions that go on after a restart of the server"

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        scripts = [Script() for _ in range(self.n_sessions)]
        for n, script in enumerate(scripts):
            main = Session(self.n_sessions * seed + n, self.sizes, defers=False).main()
            script.work(main, 1, script.ask(main))
        before = [script.records[0] for script in scripts]
        # one after another: the first tokens are to show what was kept, not how turns are taken
        after = [
            {**script.records[1], "after": [n - 1] if n else []} for n, script in enumerate(scripts)
        ]
        with side.running(folder) as server:
            warm_up(server)
            cold = [play(server, parse([record])).results[0] for record in before]
            server.restart()
            warm_up(server)
            report = play(server, parse(after))
        return totals(report) | {
            "cold_first_token_s": statistics.median(map(first_token_s, cold)),
        }


@dataclass(frozen=True, slots=True)
class FanOut:
    """A main agent and sub-agents side by side in 20 requests: how much of them is reused.

    ``is_long``: the prompts are long beside what a round adds, as with a real client; only then
    does reuse show in speed, as what is new is computed behind all that was kept.
    """

    siblings: int = 3
    rounds: int = 4
    more: int = 3
    sizes: Sizes = CLIENT
    is_long: bool = False
    metrics: Sequence[Metric] = (
        WALL,
        SLOWEST,
        TYPICAL,
        Metric("forwarded_share", "share of prompt tokens computed", "of 1"),
        CONTEXT_SPEED,
        *WORK,
    )

    @property
    def name(self) -> str:
        return "fanout-long" if self.is_long else "fanout"

    @property
    def title(self) -> str:
        long = ", long prompts" if self.is_long else ""
        return f"a main agent and {self.siblings} sub-agents side by side{long}"

    @property
    def bars(self) -> Sequence[Bar]:
        share = Bar("forwarded_share", 0.17, is_ratio=False)
        speed = Bar("context_speed_ratio", 12.0, is_least=True, is_ratio=False)
        return (share, speed) if self.is_long else (share,)

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        with side.running(folder) as server:
            warm_up(server)
            report = play(server, parse(self._records(seed)))
        figures = totals(report)
        return figures | {"forwarded_share": report.n_forwarded / report.n_prompt}

    def _records(self, seed: int) -> list[Record]:
        script = Script()
        session = Session(seed, self.sizes, defers=False)
        main = session.main()
        first = script.ask(main)
        ends = []
        for n in range(self.siblings):
            sub = session.sub(n)
            ends.append(script.work(sub, self.rounds, script.ask(sub, first)))
        main.call(["Delegate"] * self.siblings)
        script.work(main, self.more, script.ask(main, first, *ends))
        return script.records


def play(server: Server, trace: Sequence[Recorded], max_tokens: int = MAX_TOKENS) -> Report:
    """Replay against a server; every request must be answered."""
    report = replay(trace, options_for(server, max_tokens))
    for one in report.errors:
        raise TrialFailed(f"request {one.index} ({one.agent}): {one.error}")
    return report


def warm_up(server: Server) -> None:
    """A small request that begins like no other: code and weights are in memory afterwards."""
    content = prose(-1, "warm-up", WARM_UP_WORDS)
    play(server, parse([plain_record(content)]))


def plain_record(content: str) -> Record:
    """A request of one user message and nothing else."""
    body: dict[str, Any] = {"model": "local", "messages": [{"role": "user", "content": content}]}
    return {"t": 0.0, "path": "/v1/messages", "headers": {}, "body": body}


def without_billing(record: Record) -> Record:
    """The request of a client that was told to leave the billing line out."""
    body = record["body"]
    return {**record, "body": {**body, "system": body["system"][1:]}}


def totals(report: Report) -> Figures:
    """What any replay tells."""
    first = [first_token_s(one) for one in report.results]
    ratio = context_speed_ratio(report.results)
    found = {} if ratio is None else {CONTEXT_SPEED.name: ratio}
    return found | {
        "wall_s": report.wall_s,
        "slowest_first_token_s": max(first),
        "first_token_s": statistics.median(first),
        "prompt": report.n_prompt,
        "forwarded": report.n_forwarded,
        "output": report.n_output,
    }


def first_token_s(one: Result) -> float:
    """Until the first token; a reply without one took as long as it took."""
    return one.wall_s if one.ttft_s is None else one.ttft_s


def end_s(one: Result) -> float:
    return one.began_s + one.wall_s


def context_speed_ratio(results: Sequence[Result]) -> float | None:
    """Prompt tokens per second until the first token: prompts of which most was known, over those
    of which next to nothing was; medians. ``None`` without both kinds."""

    def speed(one: Result) -> float:
        return one.n_prompt / first_token_s(one)

    reused = [speed(one) for one in results if one.n_cached > one.n_prompt / 2]
    cold = [speed(one) for one in results if one.n_cached < one.n_prompt / 20]
    return statistics.median(reused) / statistics.median(cold) if reused and cold else None

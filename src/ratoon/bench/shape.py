"""Traces of any size: many agents of the shape that real sessions have.

A main agent works, starts sub-agents side by side, waits for them and goes on; some of them are
forks that know its whole conversation; sub-agents may start others; small calls go beside the work;
sessions of one repository share their prompts, and are taken up again later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ratoon.bench.sessions import Dialogue, Record, Session, Sizes, work
from ratoon.errors import ConfigError

MOST_AGENTS = 500


@dataclass(frozen=True, slots=True)
class Shape:
    """``agents`` counts main agents, too, and is met exactly.

    ``turns``: rounds of tool calls of each agent. ``siblings``: sub-agents started together, of
    which ``forks`` know their parent's conversation. ``depth``: levels below a main agent.
    ``side_calls`` and ``resumes``: how often in each session. ``repositories``: how many the
    sessions are spread over.
    """

    agents: int = 10
    sessions: int = 2
    repositories: int = 1
    turns: int = 4
    siblings: int = 3
    forks: int = 1
    depth: int = 2
    side_calls: int = 1
    resumes: int = 1
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0

    def __post_init__(self) -> None:
        rules = {
            f"agents must be from 1 to {MOST_AGENTS}": 1 <= self.agents <= MOST_AGENTS,
            "sessions must be from 1 to the number of agents": 1 <= self.sessions <= self.agents,
            "repositories must be from 1 to the number of sessions": 1
            <= self.repositories
            <= self.sessions,
            "siblings must be at least 1": self.siblings >= 1,
            "forks must be from 0 to the number of siblings": 0 <= self.forks <= self.siblings,
            "depth must be at least 1": self.depth >= 1,
            "turns, side_calls and resumes must not be negative": min(
                self.turns, self.side_calls, self.resumes
            )
            >= 0,
        }
        for rule, is_kept in rules.items():
            if not is_kept:
                raise ConfigError(rule)


def make_trace(shape: Shape) -> list[Record]:
    """All requests, each with what it waits for: the same for the same shape."""
    script = Script()
    for n in range(shape.sessions):
        # seeds of sessions and repositories never meet
        seed, repo = 1000 * shape.seed + 2 * n + 1, 1000 * shape.seed + 2 * (n % shape.repositories)
        share = shape.agents // shape.sessions + (n < shape.agents % shape.sessions)
        _Cast(shape, Session(seed, shape.sizes, repo=repo, defers=False), script).play(share)
    return script.records


class Script:
    """Requests in the order in which they may be sent, and what each waits for."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record, *after: int) -> int:
        """Append a request that follows others; its index."""
        t = max((self.records[n]["t"] + 1.0 for n in after), default=0.0)
        self.records.append({**record, "t": t, "after": sorted(set(after))})
        return len(self.records) - 1

    def ask(self, dialogue: Dialogue, *after: int) -> int:
        """The request that an agent sends now."""
        return self.add(dialogue.ask(), *after)

    def work(self, dialogue: Dialogue, rounds: int, last: int) -> int:
        """Rounds of calls, one after another; the index of the last request."""
        for record in work(dialogue, rounds):
            last = self.add(record, last)
        return last


class _Cast:
    """The agents of one session."""

    def __init__(self, shape: Shape, session: Session, script: Script) -> None:
        self.shape = shape
        self.session = session
        self.script = script
        self.n_subs = 0

    def play(self, n_agents: int) -> None:
        """The whole session, of exactly so many agents."""
        shape, main = self.shape, self.session.main()
        last = self.script.ask(main)
        for _ in range(shape.side_calls):
            self.script.add(main.aside(shape.sizes.task), last)
        last = self._live(main, n_agents - 1, shape.depth, last)
        for n in range(shape.resumes):
            main.resume(n)
            last = self.script.work(main, shape.turns, self.script.ask(main, last))

    def _live(self, dialogue: Dialogue, n_below: int, depth: int, last: int) -> int:
        """Work, then waves of sub-agents that have ``n_below`` agents in all at and below them."""
        last = self.script.work(dialogue, self.shape.turns, last)
        while n_below:
            size = min(self.shape.siblings, n_below)
            # with levels left each takes its share of the rest along, else a wave follows
            n_grown = n_below - size if depth > 1 else 0
            shares = [n_grown // size + (n < n_grown % size) for n in range(size)]
            ends = [
                self._begin(dialogue, n < self.shape.forks, share, depth - 1, last)
                for n, share in enumerate(shares)
            ]
            n_below -= size + n_grown
            dialogue.call(["Delegate"] * size)
            last = self.script.ask(dialogue, last, *ends)
        return last

    def _begin(self, parent: Dialogue, is_fork: bool, n_below: int, depth: int, after: int) -> int:
        self.n_subs += 1
        if is_fork:
            child = parent.fork(f"{parent.name}/fork {self.n_subs}", self.shape.sizes.directive)
        else:
            child = self.session.sub(self.n_subs)
        return self._live(child, n_below, depth, self.script.ask(child, after))

"""Which workloads there are, and what llama-server's best settings are for each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ratoon.bench import peer
from ratoon.bench.load import LONG_WORDS, Decode, Fairness
from ratoon.bench.pairs import Bar, Outcome, Say, Workload, measure
from ratoon.bench.sides import Remote, Side, peer_side, ratoon_side
from ratoon.bench.trace import Recorded, read_trace
from ratoon.bench.workloads import (
    CLIENT,
    LONG_CLIENT,
    MAX_TOKENS,
    FanOut,
    Forks,
    Replay,
    Restart,
    SecondSession,
)
from ratoon.errors import ConfigError

LLAMA_SERVER = "llama-server"
BEST = "llama-server best"
DEFAULTS = "llama-server defaults"
BY_HAND = "llama-server, slots by hand"
SHORT_STEPS = "llama-server, short steps"
N_CELLS = 32768
# a plain chat template that knows tools, for models whose own does not
TOOL_TEMPLATE = Path(__file__).with_name("chatml_tools.jinja")
WAIT_POLICY = "OMP_WAIT_POLICY"
PROBE = Decode((1,), 64)

# what the traces that come with a name are to show
TRACE_BARS = {
    "fan_fg-small": (Bar("wall_s", 0.60), Bar("slowest_first_token_s", 0.50)),
    "coding-small": (Bar("wall_s", 1.0),),
}


@dataclass(frozen=True, slots=True)
class Match:
    """A workload, the peer's slots that fit it, and settings that it gains by. ``is_shared``:
    replies and prompts contend, so settings that favour replies are measured, too.
    ``is_alone``: nothing is compared, as its bars are on Ratoon's own figures and it takes
    long."""

    workload: Workload
    n_slots: int
    tuned: peer.Params = field(default_factory=dict)
    is_restarted: bool = False
    is_shared: bool = False
    is_alone: bool = False
    least_cells: int = 0


@dataclass(frozen=True, slots=True)
class Lineup:
    """What is compared, and how."""

    model: Path
    against: str = LLAMA_SERVER
    has_best: bool = True
    has_defaults: bool = True
    n_cells: int = N_CELLS
    threads: int = 0
    pairs: int = 5
    default_pairs: int = 2
    chat_template: Path | None = None
    best_env: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise for what would only be found after minutes."""
        if not self.is_remote:
            peer.check_installed()
            if not (self.has_best or self.has_defaults):
                raise ConfigError("nothing to compare with: both --no-best and --no-defaults")

    @property
    def is_remote(self) -> bool:
        return self.against != LLAMA_SERVER

    def can_run(self, match: Match) -> bool:
        """What others run can't be restarted from here."""
        return not (self.is_remote and match.is_restarted)

    @property
    def judged(self) -> str:
        """The side that bars are judged against: the strongest there is."""
        if self.is_remote:
            return self.against
        return BEST if self.has_best else DEFAULTS

    @property
    def options(self) -> peer.PeerOptions:
        threads = self.threads or os.cpu_count() or 1
        return peer.PeerOptions(self.model, self.n_cells, threads, self.chat_template)

    def sides(self, match: Match) -> list[Side]:
        """Ratoon and what it is compared with."""
        options = replace(self.options, n_cells=max(self.n_cells, match.least_cells))
        ours: Side = ratoon_side(options)
        if self.is_remote:
            return [ours, Remote(self.against, self.against)]
        if match.is_alone:
            return [ours]
        sides: list[Side] = [ours]
        if self.has_best:
            sides.append(self._best(match, options, BEST))
        if self.has_defaults:
            sides.append(peer_side(DEFAULTS, options, peer.DEFAULTS))
        if self.has_best and match.is_restarted:
            sides.append(self._best(match, options, BY_HAND, saves_slots=True))
        if self.has_best and match.is_shared:
            short = replace(match, tuned={**match.tuned, **peer.SHORT_STEPS})
            sides.append(self._best(short, options, SHORT_STEPS))
        return sides

    def _best(
        self, match: Match, options: peer.PeerOptions, name: str, *, saves_slots: bool = False
    ) -> Side:
        preset = {**peer.BEST, "n_parallel": match.n_slots, **match.tuned}
        side = peer_side(name, options, preset, saves_slots=saves_slots)
        return replace(side, env=self.best_env)

    def tuned(self, folder: Path, say: Say) -> Lineup:
        """The same, with the way of waiting that suits llama-server and this machine: its threads
        spin where the cores are theirs alone, and sleep where other processes want them."""
        if self.is_remote or not self.has_best or WAIT_POLICY in os.environ:
            return self
        waits: dict[str, dict[str, str]] = {"spin": {}, "sleep": {WAIT_POLICY: "PASSIVE"}}
        speeds = {}
        for name, env in waits.items():
            side = replace(peer_side(name, self.options, peer.DEFAULTS), env=env)
            (figures,) = measure(PROBE, [side], 1, folder, _silent).trials[name]
            speeds[name] = figures["decode_1"]
        shown = ", ".join(f"{name} {value:.1f}" for name, value in speeds.items())
        say(f"llama-server's threads, tokens/s by how they wait: {shown}")
        return replace(self, best_env=waits[max(speeds, key=speeds.__getitem__)])

    def run(self, match: Match, folder: Path, say: Say) -> Outcome:
        """All pairs of a workload. What nothing is judged against takes part in fewer."""
        fewer = {name: self.default_pairs for name in (DEFAULTS, BY_HAND) if name != self.judged}
        return measure(match.workload, self.sides(match), self.pairs, folder, say, fewer)


def replay_match(name: str, trace: Sequence[Recorded], max_tokens: int) -> Match:
    """A recorded trace; every agent of it has a slot."""
    bars = TRACE_BARS.get(name, ())
    workload = Replay(name, trace, bars, max_tokens)
    return Match(workload, len({request.agent for request in trace}))


def forks_match(forks: Forks) -> Match:
    return Match(forks, forks.n_forks + 1)


def repo_match(repo: SecondSession) -> Match:
    return Match(repo, 1, peer.SHIFT)


def restart_match(restart: Restart) -> Match:
    return Match(restart, restart.n_sessions, is_restarted=True)


def fanout_match(fanout: FanOut) -> Match:
    if fanout.is_long:
        return Match(fanout, fanout.siblings + 1, is_alone=True, least_cells=2 * N_CELLS)
    return Match(fanout, fanout.siblings + 1)


def decode_match(decode: Decode) -> Match:
    return Match(decode, max(decode.n_sequences))


def fairness_match(fairness: Fairness) -> Match:
    return Match(fairness, fairness.n_streams + 1, is_shared=True)


def _silent(text: str) -> None:
    pass


def all_matches(traces: Sequence[Path], scale: float = 1.0) -> list[Match]:
    """Everything, the recorded traces first; ``scale`` is that of the made-up texts."""
    sizes = CLIENT.scaled(scale)
    return [
        *(replay_match(file.stem, read_trace(file), MAX_TOKENS) for file in traces),
        forks_match(Forks(sizes=sizes)),
        repo_match(SecondSession(sizes=sizes)),
        repo_match(SecondSession(has_billing=False, sizes=sizes)),
        restart_match(Restart(sizes=sizes)),
        fanout_match(FanOut(sizes=sizes)),
        fanout_match(FanOut(sizes=LONG_CLIENT.scaled(scale), is_long=True)),
        decode_match(Decode()),
        fairness_match(Fairness(n_words=round(LONG_WORDS * scale))),
    ]

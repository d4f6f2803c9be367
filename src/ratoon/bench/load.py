"""What is done with a server that decodes: how fast, and how evenly while a prompt arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratoon.bench.pairs import Bar, Figures, Metric, TrialFailed, percentile
from ratoon.bench.sending import Result, client, new_result, send
from ratoon.bench.sessions import prose
from ratoon.bench.sides import Server, Side, options_for
from ratoon.bench.trace import Recorded, parse
from ratoon.bench.workloads import first_token_s, plain_record, play, warm_up

# A model that is to go on like this rarely ends by itself.
TASK = "Write a very long story with all of these words, and do not stop:"
TASK_WORDS = 40
LONG_WORDS = 6800  # about 8,000 tokens
LIMIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Decode:
    """Replies side by side on prompts that are known: tokens per second of all together."""

    n_sequences: Sequence[int] = (1, 2, 4, 8)
    max_tokens: int = 128
    name: str = "decode"

    @property
    def title(self) -> str:
        return f"replies of {self.max_tokens} tokens, 1 to {max(self.n_sequences)} side by side"

    @property
    def metrics(self) -> Sequence[Metric]:
        speeds = [
            Metric(f"decode_{n}", f"{n} side by side", "tokens/s", True) for n in self.n_sequences
        ]
        return (*speeds, Metric("output", "reply tokens", "tokens"))

    @property
    def bars(self) -> Sequence[Bar]:
        return [Bar(f"decode_{n}", 1.0, is_least=True) for n in self.n_sequences]

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        prompts = parse([_story(seed, n) for n in range(max(self.n_sequences))])
        figures: Figures = {"output": 0}
        with side.running(folder) as server:
            warm_up(server)
            for n in self.n_sequences:
                play(server, prompts[:n], max_tokens=1)
                results = play(server, prompts[:n], self.max_tokens).results
                figures[f"decode_{n}"] = speed(results)
                figures["output"] += sum(one.n_output for one in results)
        return figures


@dataclass(frozen=True, slots=True)
class Fairness:
    """Replies that are being written while a long prompt arrives: the gaps between their pieces,
    from when it is sent until its own first token.

    With the prompt they are four, as many as llama-server serves at once by default: there a fifth
    request would wait until a reply has ended.
    """

    n_streams: int = 3
    n_words: int = LONG_WORDS
    max_tokens: int = 2048
    name: str = "fairness"
    bars: Sequence[Bar] = (Bar("gap_p99_s", 0.5),)
    metrics: Sequence[Metric] = (
        Metric("gap_p50_s", "gap, median"),
        Metric("gap_p90_s", "gap, 90 of 100 within"),
        Metric("gap_p99_s", "gap, 99 of 100 within"),
        Metric("gap_max_s", "longest gap"),
        Metric("first_token_s", "first token of the long prompt"),
        Metric("prompt", "its tokens", "tokens"),
        Metric("gaps", "gaps", "gaps", True),
    )

    @property
    def title(self) -> str:
        return f"{self.n_streams} replies while a long prompt arrives"

    def run(self, side: Side, folder: Path, seed: int) -> Figures:
        streams = parse([_story(seed, n) for n in range(self.n_streams)])
        (prompt,) = parse([plain_record(prose(seed, "long", self.n_words))])
        with side.running(folder) as server:
            warm_up(server)
            play(server, streams, max_tokens=1)
            return asyncio.run(self._run(server, streams, prompt))

    async def _run(self, server: Server, streams: Sequence[Recorded], prompt: Recorded) -> Figures:
        options, short = options_for(server, self.max_tokens), options_for(server, 1)
        async with client(options) as connections:
            writing = [new_result(stream) for stream in streams]
            tasks = [
                asyncio.create_task(send(connections, stream, options, result))
                for stream, result in zip(streams, writing, strict=True)
            ]
            try:
                await _until(lambda: all(len(one.deltas_s) > 1 for one in writing), tasks)
                came = await send(connections, prompt, short)
                arrived_s = came.began_s + first_token_s(came)
                # the gap in which it arrived ends with the next piece
                await _until(lambda: all(one.deltas_s[-1] > arrived_s for one in writing), tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if came.error:
            raise TrialFailed(came.error)
        gaps = [
            gap for one in writing for gap in gaps_within(one.deltas_s, came.began_s, arrived_s)
        ]
        return _gap_figures(gaps) | {"first_token_s": first_token_s(came), "prompt": came.n_prompt}


def speed(results: Sequence[Result]) -> float:
    """Tokens per second of all replies, from the first token of any to the last of all. First
    tokens come of the prompts."""
    began = min(one.deltas_s[0] for one in results)
    ended = max(one.deltas_s[-1] for one in results)
    return sum(one.n_output - 1 for one in results) / (ended - began)


def gaps_within(times_s: Sequence[float], from_s: float, to_s: float) -> list[float]:
    """Times between two pieces of a reply that lie in the given time, at least in part."""
    steps = zip(times_s, times_s[1:], strict=False)
    return [late - early for early, late in steps if late > from_s and early < to_s]


def _gap_figures(gaps: Sequence[float]) -> Figures:
    return {
        "gap_p50_s": percentile(gaps, 0.5),
        "gap_p90_s": percentile(gaps, 0.9),
        "gap_p99_s": percentile(gaps, 0.99),
        "gap_max_s": max(gaps),
        "gaps": len(gaps),
    }


async def _until(is_so: Callable[[], bool], tasks: Sequence[asyncio.Task[Result]]) -> None:
    """Wait while the replies are written; one that ends too early spoils the trial."""
    deadline = time.perf_counter() + LIMIT_S
    while not is_so():
        for task in tasks:
            if task.done():
                raise TrialFailed(
                    f"a reply ended too early: {task.result().error or 'it was done'}"
                )
        if time.perf_counter() > deadline:
            raise TrialFailed(f"no piece of a reply in {LIMIT_S:.0f} s")
        await asyncio.sleep(0.002)


def _story(seed: int, n: int) -> dict[str, object]:
    """It waits for no other one."""
    return plain_record(f"{TASK} {prose(seed, f'story {n}', TASK_WORDS)}") | {"after": []}

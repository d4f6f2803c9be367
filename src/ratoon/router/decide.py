"""Which tool: the probabilities of all names and of none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ratoon.errors import InternalError
from ratoon.router.ask import Answer, Engine, Task, ask
from ratoon.router.prompt import DomainPrompt
from ratoon.router.trie import Question, Scoring

FLOOR = 1e-3  # probabilities are right to this; what is less likely is not looked at closely

Clock = Callable[[], float]


@dataclass(slots=True)
class Spent:
    """Seconds of one decision, by what they were spent on; together, all of it."""

    render_s: float = 0.0
    first_s: float = 0.0  # until the model has read the query and says how names may begin
    names_s: float = 0.0  # where names part further on


@dataclass(slots=True)
class Decision:
    """``probabilities`` of the domain's names, in the catalogue's order, then of none; they add up
    to 1. ``n_cached`` of the prompt's ``n_prompt`` tokens were not computed."""

    domain: DomainPrompt
    tokens: list[int]
    probabilities: list[float]
    n_prompt: int
    n_cached: int
    layer: str
    spent: Spent = field(default_factory=Spent)

    @property
    def ranked(self) -> list[tuple[str | None, float]]:
        """Names from the likeliest on; None stands for no tool. Equals are in the catalogue's
        order."""
        names: list[str | None] = [tool.name for tool in self.domain.catalogue.tools]
        pairs = zip([*names, None], self.probabilities, strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])

    @property
    def is_hit(self) -> bool:
        """Whether all that the domain's queries share was there; the last token may be computed
        anew."""
        return self.n_cached >= len(self.domain.prefix) - 1

    @property
    def best(self) -> tuple[str | None, float]:
        return self.ranked[0]


async def decide(
    engine: Engine,
    domain: DomainPrompt,
    tokens: list[int],
    gate: asyncio.Semaphore,
    floor: float = FLOOR,
    clock: Clock = time.perf_counter,
) -> Decision:
    """Ask the model, level by level; all questions of a level are computed side by side, as far
    as ``gate`` lets them."""
    scoring = Scoring(domain.trie, floor)
    spent = Spent()
    first: Answer | None = None
    while questions := scoring.questions:
        began_s = clock()
        answers = await _ask_all(engine, domain, tokens, questions, gate)
        if first is None:
            first, spent.first_s = answers[0], clock() - began_s
        else:
            spent.names_s += clock() - began_s
        scoring.tell([_log_probs(answer) for answer in answers])
    return Decision(
        domain,
        tokens,
        scoring.probabilities,
        n_prompt=first.n_prompt if first else len(tokens),
        n_cached=first.n_cached if first else 0,
        layer=first.layer if first else "",
        spent=spent,
    )


async def _ask_all(
    engine: Engine,
    domain: DomainPrompt,
    tokens: list[int],
    questions: Sequence[Question],
    gate: asyncio.Semaphore,
) -> list[Answer]:
    async def one(task: Task) -> Answer:
        async with gate:
            return await ask(engine, task)

    boundaries = (len(domain.prefix),)
    tasks = [
        Task([*tokens, *question.path], question.groups, boundaries=boundaries, is_passing=True)
        for question in questions
    ]
    running = [asyncio.ensure_future(one(task)) for task in tasks]
    try:
        return await asyncio.gather(*running)
    except BaseException:  # one failed, or nobody wants them any more
        for each in running:
            each.cancel()
        raise


def _log_probs(answer: Answer) -> tuple[float, ...]:
    if answer.scored is None:
        raise InternalError("the engine gave no scores")
    return answer.scored.log_probs

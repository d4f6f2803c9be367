"""From a query to an answer: choose a tool, fill it in, run it, say what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ratoon.errors import TookTooLong
from ratoon.router.catalogue import Tool
from ratoon.router.decide import Decision
from ratoon.router.execute import Executor, Outcome
from ratoon.router.fault import fault_of
from ratoon.router.llm import Asked, Call, Called, Llm, Prompt, Reply, Result, Results, Turn
from ratoon.router.router import Router

_FORCED = "Fill in the tool's arguments from what the user says."
_UNSURE = (
    "Call a tool only if it clearly does what the user asks. Otherwise, or where you would have to "
    "guess an argument, ask the user or say what you can't do."
)
_LAST = "No more tools can be called. Answer the user from the results."


class Level(Enum):
    """How sure the router is."""

    HIGH = "high"
    LOW = "low"
    NO_TOOL = "no_tool"


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """From ``high`` on, the chosen tool is called; from ``low`` on, the language model decides
    among ``n_candidates`` tools; below, it answers by itself."""

    high: float = 0.7
    low: float = 0.2
    n_candidates: int = 5
    max_calls: int = 10
    timeout_s: float = 120.0
    temperature: float = 0.3
    max_tokens: int = 1024
    thinks: bool = False  # where a query does not say


@dataclass(slots=True)
class CallRecord:
    """One tool call. ``error`` says why it was not run."""

    name: str
    arguments: dict[str, Any] | None
    result: Any = None
    error: str = ""
    confidence: float = 0.0
    ask_s: float = 0.0  # of the language model, to write it
    execute_s: float = 0.0


@dataclass(slots=True)
class Run:
    """All that a query led to."""

    decision: Decision
    level: Level
    confidence: float
    calls: list[CallRecord] = field(default_factory=list)
    text: str = ""
    thinking: str = ""
    model: str = ""
    usage: dict[str, int] = field(default_factory=dict)
    route_s: float = 0.0
    ask_s: list[float] = field(default_factory=list)  # of each turn of the language model
    execute_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """Something that has just been done; ``run`` holds all so far."""

    name: str  # route, call, result, answer
    run: Run
    call: CallRecord | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A query and who works on it."""

    tenant: str
    domain_id: str
    query: str
    llm: Llm
    executor: Executor
    system_prompt: str = ""
    thinks: bool | None = None


async def run_pipeline(router: Router, job: Job, config: PipelineConfig) -> AsyncGenerator[Step]:
    """Step by step; the last one is named ``answer``. Raises what routing or the language model
    raises, and TookTooLong."""
    began_s = time.perf_counter()
    deadline_s = began_s + config.timeout_s
    decision = await _within(deadline_s, router.route(job.tenant, job.domain_id, job.query))
    run = _begin(decision, config)
    run.route_s = time.perf_counter() - began_s
    yield Step("route", run)
    work = _Work(job, config, run, _offered(run, config))
    while (reply := await _within(deadline_s, work.ask())) and reply.calls:
        for call in reply.calls:
            record = await _within(deadline_s, work.take(call))
            yield Step("call" if record.error else "result", run, record)
        work.close_turn(reply)
    run.text, run.total_s = reply.text, time.perf_counter() - began_s
    yield Step("answer", run)


def level_of(confidence: float, is_tool: bool, config: PipelineConfig) -> Level:
    """How sure that is."""
    if not is_tool or confidence < config.low:
        return Level.NO_TOOL
    return Level.HIGH if confidence >= config.high else Level.LOW


def _begin(decision: Decision, config: PipelineConfig) -> Run:
    name, confidence = decision.best
    return Run(decision, level_of(confidence, name is not None, config), confidence)


def _offered(run: Run, config: PipelineConfig) -> list[Tool]:
    """The tools that the language model may call, the likeliest first."""
    n = 0 if run.level is Level.NO_TOOL else config.n_candidates
    catalogue = run.decision.domain.catalogue
    names = [name for name, _ in run.decision.ranked if name is not None][:n]
    return [catalogue.tool(name) for name in names]


class _Work:
    """The conversation with the language model."""

    def __init__(self, job: Job, config: PipelineConfig, run: Run, tools: Sequence[Tool]) -> None:
        self._job = job
        self._config = config
        self._run = run
        self._tools = {tool.name: tool for tool in tools}
        self._turns: list[Turn] = [Asked(job.query)]
        self._results: list[Result] = []
        self._chances = dict(run.decision.ranked)
        self._done: set[str] = set()  # calls that gave a result
        self._repeats = False

    async def ask(self) -> Reply:
        """The next turn. The first one of a sure choice is its call, and shows no other tool; when
        all calls are spent, or the model makes one again, none may be made."""
        run, config = self._run, self._config
        thinks = config.thinks if self._job.thinks is None else self._job.thinks
        is_last = len(run.calls) >= config.max_calls or self._repeats
        is_first = not run.ask_s
        forced = next(iter(self._tools)) if run.level is Level.HIGH and is_first else None
        notes = [self._job.system_prompt]
        notes.append(_FORCED if forced else _UNSURE if run.level is Level.LOW else "")
        notes.append(_LAST if is_last and run.calls else "")
        began_s = time.perf_counter()
        reply = await self._job.llm.reply(
            Prompt(
                turns=list(self._turns),
                system="\n\n".join(filter(None, notes)),
                tools=[self._tools[forced]] if forced else list(self._tools.values()),
                forced=forced,
                bars_calls=is_last,
                max_tokens=config.max_tokens,
                temperature=0.0 if forced else config.temperature,
                thinks=thinks and forced is None,
            )
        )
        run.ask_s.append(time.perf_counter() - began_s)
        run.model = reply.model or run.model
        run.thinking = "\n".join(filter(None, [run.thinking, reply.thinking]))
        for name, n in reply.usage.items():
            run.usage[name] = run.usage.get(name, 0) + n
        return Reply(reply.text) if is_last else reply

    async def take(self, call: Call) -> CallRecord:
        """Check a call and run it; what is wrong with it goes back to the language model."""
        run = self._run
        record = CallRecord(call.name, call.arguments, ask_s=run.ask_s[-1])
        record.confidence = self._chances.get(call.name, 0.0)
        reason = await asyncio.to_thread(self._fault, call)
        key = json.dumps([call.name, call.arguments], sort_keys=True)
        if key in self._done:
            self._repeats = True
            reason = "this call was made before, and has its result"
        if len(run.calls) >= self._config.max_calls:
            reason = f"more than {self._config.max_calls} calls"
        run.calls.append(record)
        if reason:
            record.error = reason
            self._results.append(Result(call, Outcome({"error": reason}).text, is_error=True))
            return record
        began_s = time.perf_counter()
        outcome = await self._job.executor.run(call.name, call.arguments or {})
        record.execute_s = time.perf_counter() - began_s
        run.execute_s += record.execute_s
        record.result = outcome.value
        if not outcome.is_error:
            self._done.add(key)
        self._results.append(Result(call, outcome.text, outcome.is_error))
        return record

    def close_turn(self, reply: Reply) -> None:
        """All calls of a turn are dealt with."""
        self._turns += [Called(reply.text, reply.calls), Results(tuple(self._results))]
        self._results = []

    def _fault(self, call: Call) -> str:
        """Why a call can't be run; empty: it can."""
        tool = self._tools.get(call.name)
        if tool is None:
            return f"there is no tool {call.name[:128]!r}"
        if call.arguments is None:
            return "the arguments are not a JSON object"
        return fault_of(tool.parameters, call.arguments)


async def _within(deadline_s: float, work: Any) -> Any:
    try:
        async with asyncio.timeout(max(0.0, deadline_s - time.perf_counter())):
            return await work
    except TimeoutError:
        raise TookTooLong("the query was not answered in time") from None

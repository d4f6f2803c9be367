"""One choice, run, and handed to a language model with all that belongs to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from ratoon.errors import TookTooLong, UpstreamError
from ratoon.router.anthropic_form import message_of
from ratoon.router.credentials import Wish
from ratoon.router.decide import Decision
from ratoon.router.desk import Desk
from ratoon.router.execute import MOCK, Executor, Outcome, executor
from ratoon.router.llm import Asked, Call, Called, Llm, Prompt, Result, Results, Turn
from ratoon.router.names import ANTHROPIC_CHARACTERS, OPENAI_CHARACTERS, sendable_names
from ratoon.router.openai_form import messages_of

Format = Literal["claude", "openai", "raw"]


@dataclass(frozen=True, slots=True)
class Options:
    """What is to be done with a query."""

    domain_id: str
    query: str
    format: Format = "claude"
    executor: str = MOCK
    wish: Wish = field(default_factory=Wish)
    has_executor: bool = True
    max_arguments: int | None = None  # tokens


@dataclass(slots=True)
class Handover:
    """What came of it. ``context`` is what a language model needs to answer, in its API's form;
    ``reply`` its answer, where one is configured."""

    decision: Decision
    name: str | None
    arguments: dict[str, Any] | None = None
    result: Any = None
    context: Any = None
    reply: str | None = None
    error: str = ""
    model: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)
    text: str = ""
    route_s: float = 0.0
    arguments_s: float = 0.0
    execute_s: float = 0.0
    llm_s: float = 0.0


async def hand_over(desk: Desk, tenant: str, options: Options) -> Handover:
    """Raises NotFound, InvalidRequest, TookTooLong; what a tool or a language model fails with is
    told. What is wrong with a request is told before a tool runs."""
    desk.router.domains.get(tenant, options.domain_id)
    runner = executor(options.executor, desk.hosts, desk.functions)
    domain_id, wish = options.domain_id, options.wish
    asked: tuple[Llm, str] | None = None
    try:
        async with AsyncExitStack() as stack, asyncio.timeout(desk.config.timeout_s):
            if options.has_executor and desk.has_llm(tenant, domain_id, wish):
                asked = await stack.enter_async_context(desk.llm(tenant, domain_id, wish))
            found = await _hand_over(desk, tenant, options, runner, asked)
    except TimeoutError:
        raise TookTooLong("the query was not answered in time") from None
    return found


async def _hand_over(
    desk: Desk, tenant: str, options: Options, runner: Executor, asked: tuple[Llm, str] | None
) -> Handover:
    began_s = time.perf_counter()
    decision = await desk.router.route(tenant, options.domain_id, options.query)
    found = Handover(decision, decision.best[0])
    if found.name is not None:
        filled = await desk.router.arguments(decision, found.name, options.max_arguments)
        found.arguments, found.arguments_s = filled.value, filled.seconds
        found.text = f"{found.name}\n{filled.text}"
    found.route_s = time.perf_counter() - began_s
    if not options.has_executor:
        return found
    turns: list[Turn] = [Asked(options.query)]
    if found.name is not None and found.arguments is not None:
        began_s = time.perf_counter()
        outcome = await runner.run(found.name, found.arguments)
        found.execute_s = time.perf_counter() - began_s
        found.result = outcome.value
        turns += _turns(found.name, found.arguments, outcome)
    found.context = _context(options, turns, found)
    if asked is not None:
        await _ask(*asked, turns, found)
    return found


async def _ask(llm: Llm, system: str, turns: list[Turn], found: Handover) -> None:
    began_s = time.perf_counter()
    catalogue = found.decision.domain.catalogue
    tools = [] if found.name is None else [catalogue.tool(found.name)]
    try:
        reply = await llm.reply(Prompt(turns, system, tools, bars_calls=True))
    except UpstreamError as error:
        found.error = str(error)
    else:
        found.reply, found.model, found.usage = reply.text, reply.model, reply.usage
    found.llm_s = time.perf_counter() - began_s


def _turns(name: str, arguments: dict[str, Any], outcome: Outcome) -> list[Turn]:
    call = Call("call_1", name, arguments, json.dumps(arguments))
    return [Called("", (call,)), Results((Result(call, outcome.text, outcome.is_error),))]


def _context(options: Options, turns: list[Turn], found: Handover) -> Any:
    if options.format == "raw":
        return {
            "query": options.query,
            "tool": found.name,
            "arguments": found.arguments,
            "result": found.result,
        }
    tools = found.decision.domain.catalogue.tools
    if options.format == "claude":
        names = sendable_names(tools, ANTHROPIC_CHARACTERS)
        return [message_of(turn, names) for turn in turns]
    names = sendable_names(tools, OPENAI_CHARACTERS)
    return [message for turn in turns for message in messages_of(turn, names)]

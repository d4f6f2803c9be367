"""The router: register tools once, route each query from what is kept of them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from ratoon.engine.events import FinishReason
from ratoon.engine.request import Guide, Priority, Request
from ratoon.errors import RatoonError
from ratoon.metrics import Metrics
from ratoon.router.ask import Engine, Task, ask
from ratoon.router.catalogue import Catalogue, Tool, check_id
from ratoon.router.decide import Decision, decide
from ratoon.router.domains import Domain, Domains, Records, Status, dump
from ratoon.router.prompt import DomainPrompt, Prompts

MAX_REGISTERING = 2  # at the engine at a time: its queue is for queries
MAX_ASKED = 64

log = logging.getLogger("ratoon.router")


class Guides(Protocol):
    """Makes the constraints of arguments. Called from worker threads, several at once."""

    def arguments(self, name: str, schema: Mapping[str, Any]) -> Guide: ...


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """``max_domains``: of each tenant. ``max_arguments``: tokens of a tool's arguments.
    ``preload``: what is registered at the start, by id. ``max_asked``: requests that a query,
    or all batches together, have at the engine at a time; its queue is for others, too."""

    max_domains: int = 20
    preload: Mapping[str, Catalogue] = field(default_factory=dict)
    max_arguments: int = 512
    max_asked: int = MAX_ASKED


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the model fills in for a tool. ``value`` is None where it did not come to an end."""

    value: dict[str, Any] | None
    text: str
    seconds: float


class Router:
    """Belongs to one event loop; the model's work is done by the engine, that on texts by worker
    threads."""

    def __init__(
        self,
        engine: Engine,
        prompts: Callable[[], Prompts],
        guides: Guides,
        config: RouterConfig | None = None,
        records: Records | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """``prompts`` is called when the first domain is registered, as it takes a moment."""
        self.config = config or RouterConfig()
        self.domains = Domains(self.config.max_domains, records)
        self._engine = engine
        self._make_prompts = prompts
        self._guides = guides
        self._metrics = metrics or Metrics()
        self._prompts: Prompts | None = None
        self._lock = asyncio.Lock()  # guards the making of prompts
        self._order = asyncio.Lock()  # changes to domains, one after another
        self._running: set[asyncio.Task[None]] = set()
        self.crowd = asyncio.Semaphore(self.config.max_asked)  # what all batches pass through
        self._turns = asyncio.Semaphore(MAX_REGISTERING)

    # --- domains -------------------------------------------------------------------------------

    async def register(
        self, tenant: str, domain_id: str, catalogue: Catalogue, *, is_shared: bool = False
    ) -> Domain:
        """Have a catalogue computed and kept; the domain is there at once and computed in the
        background (``finish`` waits for it). ``is_shared``: for all tenants. Raises
        InvalidRequest, PromptTooLong."""
        check_id(domain_id)
        prompts = await self._ready()
        async with self._order:
            prompt, record = await asyncio.to_thread(_prepare, prompts, catalogue)
            domain = self.domains.add(tenant, domain_id, prompt, record, is_shared=is_shared)
        self._start(domain)
        return domain

    async def append(self, tenant: str, domain_id: str, tools: Sequence[Tool]) -> Domain:
        """Add tools at a domain's end; only they are computed. Raises NotFound, InvalidRequest."""
        prompts = await self._ready()
        async with self._order:
            before = self.domains.get(tenant, domain_id)
            catalogue = before.catalogue.with_tools(tools)
            prompt, record = await asyncio.to_thread(_prepare, prompts, catalogue)
            self.domains.check_current(before)  # it may have been removed meanwhile
            domain = self.domains.add(tenant, domain_id, prompt, record)
        domain.n_queries = before.n_queries
        self._start(domain)
        return domain

    async def finish(self, domain: Domain) -> None:
        """Wait until a domain's prefix is computed, or that has failed."""
        if domain.registration is not None:
            await asyncio.wait([domain.registration])

    async def open(self) -> int:
        """Register again what earlier servers had, and what is to be there from the start;
        returns how many domains that is."""
        saved = await asyncio.to_thread(lambda: list(self.domains.saved()))
        given = [("", name, catalogue) for name, catalogue in self.config.preload.items()]
        saved = [each for each in saved if each[0] or each[1] not in self.config.preload] + given
        n = 0
        for tenant, domain_id, catalogue in saved:
            try:
                is_shared = not tenant and domain_id in self.config.preload
                await self.register(tenant, domain_id, catalogue, is_shared=is_shared)
                n += 1
            except RatoonError as error:
                log.warning("domain %s is not registered again: %s", domain_id, error)
        return n

    async def close(self) -> None:
        """Stop what is computed in the background."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _ready(self) -> Prompts:
        async with self._lock:
            if self._prompts is None:
                self._prompts = await asyncio.to_thread(self._make_prompts)
            return self._prompts

    def _start(self, domain: Domain) -> None:
        task = asyncio.get_running_loop().create_task(self._compute(domain))
        domain.registration = task
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _compute(self, domain: Domain) -> None:
        """The prefix, to be kept; a query that comes meanwhile goes first, and shares it."""

        def watch(request: Request) -> None:
            domain.computing = request

        prefix = domain.prompt.prefix
        task = Task(
            prefix, boundaries=(len(prefix),), priority=Priority.BACKGROUND, label="register"
        )
        began_s = time.perf_counter()
        try:
            async with self._turns:
                answer = await ask(self._engine, task, watch)
        except RatoonError as error:
            domain.status, domain.error = Status.FAILED, str(error)
            log.warning("domain %s was not computed ahead: %s", domain.id, error)
        else:
            domain.n_forwarded = answer.n_prompt - answer.n_cached
            domain.layer = answer.layer
            domain.status = Status.READY
        finally:
            domain.prefill_s = time.perf_counter() - began_s
            domain.computing = domain.registration = None

    # --- queries -------------------------------------------------------------------------------

    async def route(
        self, tenant: str, domain_id: str, query: str, crowd: asyncio.Semaphore | None = None
    ) -> Decision:
        """Which tool serves a query, which is one of a ``crowd`` or alone. Raises NotFound,
        InvalidRequest, PromptTooLong."""
        domain = self.domains.get(tenant, domain_id)
        self.domains.use(domain)
        prompts = await self._ready()
        began_s = time.perf_counter()
        tokens = await asyncio.to_thread(prompts.query, domain.prompt, query)
        render_s = time.perf_counter() - began_s
        gate = crowd or asyncio.Semaphore(self.config.max_asked)
        decision = await decide(self._engine, domain.prompt, tokens, gate)
        decision.spent.render_s = render_s
        name, chance = decision.best
        seconds = time.perf_counter() - began_s
        self._metrics.observe_route(
            tenant, seconds, has_tool=name is not None, is_hit=decision.is_hit
        )
        log.info(
            "route %s: %s (%.2f) reuse=%d of %d",
            domain.id,
            name or "no tool",
            chance,
            decision.n_cached,
            decision.n_prompt,
        )
        return decision

    async def arguments(
        self,
        decision: Decision,
        name: str,
        max_tokens: int | None = None,
        crowd: asyncio.Semaphore | None = None,
    ) -> Arguments:
        """What a tool of the decision's domain is to be called with: JSON of its schema, from the
        same prompt. ``max_tokens`` None: as configured."""
        prompts = await self._ready()
        tool = decision.domain.catalogue.tool(name)
        began_s = time.perf_counter()
        guide = await asyncio.to_thread(self._guides.arguments, name, tool.parameters)
        prompt = prompts.chosen(decision.tokens, name)
        wanted = self.config.max_arguments if max_tokens is None else max_tokens
        task = Task(
            prompt,
            max_tokens=max(1, min(wanted, self._engine.n_ctx - len(prompt))),
            boundaries=(len(decision.domain.prefix),),
            is_passing=True,
            guide=guide,
        )
        async with crowd or nullcontext():
            answer = await ask(self._engine, task)
        text = answer.text.decode("utf-8", "replace")
        value = json.loads(text) if answer.reason is FinishReason.STOP else None
        return Arguments(value, text, time.perf_counter() - began_s)


def _prepare(prompts: Prompts, catalogue: Catalogue) -> tuple[DomainPrompt, bytes]:
    """All that takes time in proportion to a catalogue."""
    return prompts.domain(catalogue), dump(catalogue)

"""Where queries that are to be answered come in: who works on each is settled here."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from ratoon.errors import InvalidRequest
from ratoon.router.credentials import Access, Credentials, Wish
from ratoon.router.execute import MOCK, Functions, executor
from ratoon.router.hosts import Hosts, parse_url
from ratoon.router.llm import Llm
from ratoon.router.pipeline import Job, PipelineConfig, Step, run_pipeline
from ratoon.router.router import Router

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token of RFC 9110


@dataclass(frozen=True, slots=True)
class Question:
    """A query as a client sends it."""

    domain_id: str
    query: str
    executor: str = MOCK
    wish: Wish = field(default_factory=Wish)
    thinks: bool | None = None  # None: as the server is set


@dataclass(frozen=True, slots=True)
class Desk:
    """``local`` gives the model that this server runs; ``functions`` are Python tools."""

    router: Router
    credentials: Credentials
    hosts: Hosts
    local: Callable[[], Llm]
    functions: Functions = field(default_factory=dict)
    config: PipelineConfig = field(default_factory=PipelineConfig)

    async def answer(self, tenant: str, question: Question) -> AsyncGenerator[Step]:
        """Step by step. Raises NotFound, InvalidRequest before the first one."""
        self.router.domains.get(tenant, question.domain_id)
        runner = executor(question.executor, self.hosts, self.functions)
        async with self.llm(tenant, question.domain_id, question.wish) as (llm, system_prompt):
            job = Job(
                tenant,
                question.domain_id,
                question.query,
                llm,
                runner,
                system_prompt,
                question.thinks,
            )
            async with aclosing(run_pipeline(self.router, job, self.config)) as steps:
                async for step in steps:
                    yield step

    @asynccontextmanager
    async def llm(self, tenant: str, domain_id: str, wish: Wish) -> AsyncGenerator[tuple[Llm, str]]:
        """The language model that is to answer, and the system prompt that it gets. Raises
        InvalidRequest."""
        access = self.credentials.resolve(tenant, domain_id, wish)
        llm = self._llm(access)
        try:
            yield llm, access.system_prompt
        finally:
            await llm.close()

    def has_llm(self, tenant: str, domain_id: str, wish: Wish) -> bool:
        """Whether a request, a domain or the server names a language model."""
        return self.credentials.resolve(tenant, domain_id, wish) != Access(
            model=wish.model or "", system_prompt=wish.system_prompt or ""
        )

    def check(self, access: Access) -> Access:
        """Access that may be stored, by whom the server's operator trusts; so its address may be
        any. Raises InvalidRequest."""
        _check_sendable(access, "")
        return access

    def _llm(self, access: Access) -> Llm:
        if access.provider == "local":
            return self.local()
        _check_sendable(access, "llm_")
        return _SDKS[access.provider]()(access, self.config.timeout_s)


def _check_sendable(access: Access, prefix: str) -> None:
    """Whether a request can be made of it. Raises InvalidRequest, which names the field."""
    if access.provider != "local" and not access.api_key:
        raise InvalidRequest(f"{prefix}api_key: Field required")
    if not _is_header(access.api_key):
        raise InvalidRequest(f"{prefix}api_key: Input should be printable ASCII")
    for name, value in access.headers.items():
        if not _HEADER.fullmatch(name) or not _is_header(value):
            field = "llm_headers" if prefix else "extra_headers"
            raise InvalidRequest(f"{field}: not a header of HTTP: {name[:128]!r}")
    if access.base_url is not None:
        parse_url(access.base_url, f"{prefix}base_url")


def _is_header(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()


def _openai() -> Callable[[Access, float], Llm]:
    from ratoon.router.openai_llm import OpenAiLlm

    return OpenAiLlm


def _claude() -> Callable[[Access, float], Llm]:
    from ratoon.router.anthropic_llm import AnthropicLlm

    return AnthropicLlm


# imported when first asked for: each SDK takes longer to import than all of the server
_SDKS = {"openai": _openai, "claude": _claude}

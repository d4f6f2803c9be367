"""The domains: which tools are registered, under which name, by whom."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ratoon.engine.request import Request
from ratoon.errors import InvalidRequest, NotFound, RatoonError
from ratoon.router.catalogue import Catalogue, check_id, parse_tools
from ratoon.router.prompt import DomainPrompt

log = logging.getLogger("ratoon.router")

VERSION = 1
SEPARATOR = "/"  # between tenant and id; neither has one


class Status(Enum):
    REGISTERING = "registering"
    READY = "ready"
    FAILED = "failed"  # its prefix could not be computed ahead; queries try again


class Records(Protocol):
    """Where catalogues outlive the process. No method raises or waits, but for ``load``."""

    def load(self) -> list[tuple[str, bytes]]: ...

    def put(self, name: str, data: bytes) -> None: ...

    def touch(self, name: str) -> None: ...

    def remove(self, name: str) -> None: ...


@dataclass(slots=True, eq=False)
class Domain:
    """A tenant's named catalogue. Times are of day, in seconds."""

    tenant: str
    id: str
    prompt: DomainPrompt
    registered_s: float
    status: Status = Status.REGISTERING
    error: str = ""
    used_s: float = 0.0
    n_queries: int = 0
    n_forwarded: int = 0  # of the prefix, by the registration
    prefill_s: float = 0.0
    layer: str = ""  # where the registration found what it did not forward
    is_shared: bool = False  # every tenant may ask it
    computing: Request | None = field(default=None, repr=False)
    registration: asyncio.Task[None] | None = field(default=None, repr=False)  # until it ends

    @property
    def catalogue(self) -> Catalogue:
        return self.prompt.catalogue

    @property
    def progress(self) -> float:
        """The share of the prefix that is computed, from 0 to 1."""
        if self.status is Status.READY:
            return 1.0
        request = self.computing
        if request is None or not request.n_to_forward:
            return 0.0
        return min(1.0, request.n_forwarded / request.n_to_forward)

    def leave(self) -> None:
        """Nobody asks for it any more: what is not yet computed need not be."""
        if self.registration is not None:
            self.status, self.error = Status.FAILED, "the domain was replaced or removed"
            self.registration.cancel()


class Domains:
    """All tenants' domains, the least recently used of each tenant leaving when it has too many.
    Belongs to one event loop."""

    def __init__(
        self,
        max_domains: int,
        records: Records | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.max_domains = max_domains
        self._records = records
        self._clock = clock
        self._by_name: OrderedDict[tuple[str, str], Domain] = OrderedDict()

    def add(
        self,
        tenant: str,
        domain_id: str,
        prompt: DomainPrompt,
        record: bytes,
        *,
        is_shared: bool = False,
    ) -> Domain:
        """Register a catalogue, which ``record`` is the ``dump`` of; it takes the place of an
        older one of this id."""
        now = self._clock()
        domain = Domain(tenant, check_id(domain_id), prompt, now, used_s=now, is_shared=is_shared)
        before = self._by_name.pop((tenant, domain_id), None)
        if before is not None:
            before.leave()
        self._by_name[tenant, domain_id] = domain
        if self._records is not None:
            self._records.put(_record(domain), record)
        self._bound(tenant)
        return domain

    def get(self, tenant: str, domain_id: str) -> Domain:
        """A tenant's domain, or else one for all. Raises NotFound; another tenant's domain is not
        found either."""
        domain = self._by_name.get((tenant, domain_id))
        shared = self._by_name.get(("", domain_id))
        if domain is None and shared is not None and shared.is_shared:
            return shared
        if domain is None:
            raise NotFound(f"domain_id: no domain '{domain_id[:128]}' is registered")
        return domain

    def use(self, domain: Domain) -> None:
        """It answers a query."""
        domain.used_s = self._clock()
        domain.n_queries += 1
        key = (domain.tenant, domain.id)
        if self._by_name.get(key) is domain:
            self._by_name.move_to_end(key)
            if self._records is not None:
                self._records.touch(_record(domain))

    def remove(self, tenant: str, domain_id: str) -> Domain:
        """Raises NotFound, also for what is another's."""
        domain = self.get(tenant, domain_id)
        if domain.tenant != tenant:
            raise NotFound(f"domain_id: '{domain_id}' is there for all and can't be removed")
        del self._by_name[tenant, domain_id]
        domain.leave()
        if self._records is not None:
            self._records.remove(_record(domain))
        return domain

    def of(self, tenant: str) -> list[Domain]:
        """The domains that a tenant may ask, by their ids."""
        shared = {each.id: each for each in self._by_name.values() if each.is_shared}
        own = {each.id: each for each in self._by_name.values() if each.tenant == tenant}
        return [domain for _, domain in sorted((shared | own).items())]

    def all(self) -> list[Domain]:
        """Every tenant's, the least recently used first."""
        return list(self._by_name.values())

    def check_current(self, domain: Domain) -> None:
        """Raises NotFound where it was replaced or removed meanwhile."""
        if self._by_name.get((domain.tenant, domain.id)) is not domain:
            raise NotFound(f"domain_id: '{domain.id}' was replaced or removed meanwhile")

    def holds(self, tenant: str, digest: str) -> bool:
        """Whether some domain that a tenant may ask has the catalogue of this digest; what others
        have is not for it to know."""
        return any(each.prompt.digest == digest for each in self.of(tenant))

    def saved(self) -> Iterator[tuple[str, str, Catalogue]]:
        """Tenant, id and catalogue of what was registered with earlier servers, least recently
        used first. What can't be read is removed."""
        if self._records is None:
            return
        for name, data in self._records.load():
            try:
                yield _load(name, data)
            except (ValueError, TypeError, KeyError, RatoonError) as error:
                log.warning("a registered domain can't be read back: %s", type(error).__name__)
                self._records.remove(name)

    def _bound(self, tenant: str) -> None:
        own = [
            domain
            for domain in self._by_name.values()
            if domain.tenant == tenant and not domain.is_shared
        ]
        for domain in own[: max(0, len(own) - self.max_domains)]:
            log.info("domain %s leaves: more than %d are registered", domain.id, self.max_domains)
            self.remove(tenant, domain.id)


def _record(domain: Domain) -> str:
    return f"{domain.tenant}{SEPARATOR}{domain.id}"


def dump(catalogue: Catalogue) -> bytes:
    """The record of a catalogue. Takes time in proportion to it, and lets other threads go on
    between two tools."""
    tools = ", ".join(json.dumps(tool.source) for tool in catalogue.tools)
    prompt = json.dumps(catalogue.system_prompt)
    return f'{{"version": {VERSION}, "system_prompt": {prompt}, "tools": [{tools}]}}'.encode()


def _load(name: str, data: bytes) -> tuple[str, str, Catalogue]:
    tenant, _, domain_id = name.rpartition(SEPARATOR)
    value = json.loads(data)
    if value["version"] != VERSION:
        raise InvalidRequest("another version's")
    catalogue = Catalogue(parse_tools(value["tools"]), str(value["system_prompt"]))
    return tenant, check_id(domain_id), catalogue

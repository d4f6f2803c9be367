"""Whose language model answers, and with which key: the request's, the domain's, or the server's.

A stored key goes to the address it was stored with and to no other, whatever a request says.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ratoon.errors import InvalidRequest, NotFound
from ratoon.router.domains import Records
from ratoon.router.hosts import Hosts

log = logging.getLogger("ratoon.router")

Provider = Literal["openai", "claude", "local"]
PROVIDERS: tuple[Provider, ...] = ("openai", "claude", "local")
_OTHER_NAMES: Mapping[str, Provider] = {"anthropic": "claude"}

DEFAULT = "_default"  # the id of what counts where a domain has nothing of its own
# headers that say where a request goes, or how its bytes are to be taken
_BARRED = frozenset(
    {
        *("host", "forwarded", "connection", "keep-alive", "upgrade"),
        *("content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("te", "trailer"),
    }
)
_BARRED_BEGINNINGS = ("proxy-", "x-forwarded-")
_N_SHOWN = 50  # characters of a system prompt


class Box(Protocol):
    """Keeps bytes from being read by others."""

    def lock(self, data: bytes) -> bytes: ...

    def unlock(self, data: bytes) -> bytes:
        """Raises ValueError for what was not locked here."""
        ...


@dataclass(frozen=True, slots=True)
class Access:
    """A language model: where it is and how to be let in. ``base_url`` None: the provider's."""

    provider: Provider = "local"
    api_key: str = field(default="", repr=False)
    model: str = ""
    base_url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    system_prompt: str = ""

    def masked(self) -> dict[str, Any]:
        """For answers and logs: no secret can be told from it."""
        return {
            "provider": self.provider,
            "api_key": mask(self.api_key),
            "model": self.model or None,
            "base_url": self.base_url,
            "has_extra_headers": bool(self.headers),
            "system_prompt": self.system_prompt[:_N_SHOWN] or None,
        }


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request says of the model that is to answer; None: nothing."""

    provider: str | None = None
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    base_url: str | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    system_prompt: str | None = None


def mask(key: str) -> str | None:
    """A key as it may be shown: its last four characters, if it has many more."""
    if not key:
        return None
    return f"...{key[-4:]}" if len(key) >= 16 else "***"


def provider_of(value: str, where: str = "llm_provider") -> Provider:
    """Raises InvalidRequest."""
    name = _OTHER_NAMES.get(value, value)
    for each in PROVIDERS:
        if name == each:
            return each
    raise InvalidRequest(f"{where}: Input should be one of {', '.join(PROVIDERS)}")


class Credentials:
    """What was stored for domains, by tenant and id, each locked as long as it lies on disk."""

    def __init__(
        self, hosts: Hosts, default: Access | None, box: Box | None, records: Records | None
    ) -> None:
        """``default`` comes from the server's own settings. Without ``box`` nothing is written."""
        self._hosts = hosts
        self._default = default
        self._box = box
        self._records = records if box is not None else None
        self._stored: dict[str, Access] = {}
        for name, data in self._records.load() if self._records else ():
            self._load(name, data)

    def set(self, tenant: str, domain_id: str, access: Access) -> None:
        """Store access for a domain, or as every tenant's default."""
        name = _name(tenant, domain_id)
        self._stored[name] = access
        if self._records is not None and self._box is not None:
            self._records.put(name, self._box.lock(_dump(access)))

    def remove(self, tenant: str, domain_id: str) -> None:
        """Raises NotFound."""
        name = _name(tenant, domain_id)
        if self._stored.pop(name, None) is None:
            raise NotFound(f"no language model is configured for '{domain_id[:128]}'")
        if self._records is not None:
            self._records.remove(name)

    def of(self, tenant: str) -> dict[str, Access]:
        """A tenant's, and the default, by id."""
        prefix = f"{tenant}/"
        own = {
            name.removeprefix(prefix): access
            for name, access in sorted(self._stored.items())
            if name.startswith(prefix)
        }
        default = self._stored.get(_name(tenant, DEFAULT))
        return own if default is None else {**own, DEFAULT: default}

    def resolve(self, tenant: str, domain_id: str, wish: Wish) -> Access:
        """The model that is to answer a request. Raises InvalidRequest."""
        if wish.api_key is not None or wish.provider is not None:
            own = self._own(wish)
            if own is not None:
                return own
        stored = self._find(tenant, domain_id)
        if stored is None:
            if wish.provider is not None:
                raise InvalidRequest("llm_api_key: Field required, as none is stored here")
            if wish.base_url is not None:
                raise InvalidRequest("llm_base_url: needs an llm_api_key, as none is stored here")
            return Access(model=wish.model or "", system_prompt=wish.system_prompt or "")
        return self._adjusted(stored, wish)

    def _own(self, wish: Wish) -> Access | None:
        """All from the request; None where it only names the provider of what is stored."""
        provider = provider_of(wish.provider or "openai")
        if provider != "local" and wish.api_key is None:
            return None
        if wish.base_url is not None:
            self._hosts.check(wish.base_url, "llm_base_url")
        return Access(
            provider,
            wish.api_key or "",
            wish.model or "",
            wish.base_url,
            _headers(wish),
            wish.system_prompt or "",
        )

    def _find(self, tenant: str, domain_id: str) -> Access | None:
        names = (_name(tenant, domain_id), _name(tenant, DEFAULT))
        return next((self._stored[name] for name in names if name in self._stored), self._default)

    def _adjusted(self, stored: Access, wish: Wish) -> Access:
        if wish.provider is not None and provider_of(wish.provider) != stored.provider:
            raise InvalidRequest("llm_provider: no key is stored for this provider")
        if wish.base_url is not None and wish.base_url.rstrip("/") != (
            stored.base_url or ""
        ).rstrip("/"):
            raise InvalidRequest(
                "llm_base_url: a stored key is sent only to the address it was stored with"
            )
        return Access(
            stored.provider,
            stored.api_key,
            wish.model or stored.model,
            stored.base_url,
            _headers(wish) | _lower(stored.headers),
            stored.system_prompt if wish.system_prompt is None else wish.system_prompt,
        )

    def _load(self, name: str, data: bytes) -> None:
        assert self._box is not None
        assert self._records is not None
        try:
            self._stored[name] = _parse(self._box.unlock(data))
        except (ValueError, TypeError, KeyError):
            log.warning("a stored language model's access can't be read back; it is removed")
            self._records.remove(name)


def _headers(wish: Wish) -> dict[str, str]:
    """A request's own. Raises InvalidRequest for those that would send it elsewhere."""
    headers = _lower(wish.headers or {})
    for name in headers:
        if name in _BARRED or name.startswith(_BARRED_BEGINNINGS):
            raise InvalidRequest(f"llm_headers: {name} can't be set")
    return headers


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _name(tenant: str, domain_id: str) -> str:
    """Of what is stored. The default is an admin's, for all tenants."""
    return f"/{DEFAULT}" if domain_id == DEFAULT else f"{tenant}/{domain_id}"


def _dump(access: Access) -> bytes:
    value = {
        "provider": access.provider,
        "api_key": access.api_key,
        "model": access.model,
        "base_url": access.base_url,
        "headers": dict(access.headers),
        "system_prompt": access.system_prompt,
    }
    return json.dumps(value).encode()


def _parse(data: bytes) -> Access:
    value = json.loads(data)
    return Access(
        provider_of(value["provider"]),
        str(value["api_key"]),
        str(value["model"]),
        value["base_url"],
        dict(value["headers"]),
        str(value["system_prompt"]),
    )

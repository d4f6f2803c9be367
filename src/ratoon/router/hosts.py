"""Which addresses the server calls because a request says so."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from ratoon.errors import InvalidRequest

PROVIDERS = frozenset({"api.openai.com", "api.anthropic.com"})
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Hosts:
    """``allowed``: names of hosts, each with all its ports or, as ``host:port``, with one (an IPv6
    address with a port in brackets); ``*.name`` stands for all hosts below a name. ``has_local``:
    this machine's loopback, for a server that only its own users reach."""

    allowed: Collection[str] = ()
    has_local: bool = False

    def check(self, url: str, where: str) -> str:
        """The address, which may be called. Raises InvalidRequest, which names the field."""
        parts = parse_url(url, where)
        host = (parts.hostname or "").rstrip(".").lower()
        if not (self._is_listed(host, _port(parts, where)) or self._is_known(host, parts)):
            raise InvalidRequest(
                f"{where}: this server does not call {host}; its operator can allow it with "
                "`allow_hosts`"
            )
        return url

    def _is_known(self, host: str, parts: SplitResult) -> bool:
        if host in PROVIDERS:
            return parts.scheme == "https"
        return self.has_local and _is_loopback(host)

    def _is_listed(self, host: str, port: int) -> bool:
        plain = _plain(host)
        for entry in self.allowed:
            name, only = _split(entry.lower())
            is_below = name.startswith("*.") and host.endswith(name[1:])
            if (is_below or plain == _plain(name)) and only in ("", str(port)):
                return True
        return False


def parse_url(url: str, where: str) -> SplitResult:
    """An address of the web. Raises InvalidRequest, which names the field."""
    try:
        if not url.isprintable() or " " in url:  # of which urlsplit drops some, and goes on
            raise ValueError(url)
        parts = urlsplit(url)
    except ValueError:
        raise InvalidRequest(f"{where}: not a URL") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidRequest(f"{where}: Input should be an http or https URL")
    if parts.username or parts.password:
        raise InvalidRequest(f"{where}: must not hold a user name or password")
    return parts


def _split(entry: str) -> tuple[str, str]:
    """Name and port, if it has one."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") > 1:
        return entry, ""
    name, _, port = entry.partition(":")
    return name, port


def _plain(host: str) -> str:
    """One way to write an address; names stay."""
    try:
        return ipaddress.ip_address(host).compressed
    except ValueError:
        return host


def _port(parts: SplitResult, where: str) -> int:
    try:
        return parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise InvalidRequest(f"{where}: not a port") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

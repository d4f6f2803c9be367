"""Recorded agent traffic: JSON lines of ``t``, ``path``, ``headers`` and ``body``.

A line may say in ``after`` which lines (from 0) must be answered before it is sent; where none
says so, the order is inferred from times and agents.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ratoon.errors import ConfigError

SIDE_BY_SIDE_S = 0.2  # agents whose first requests are this close were started together
_BILLING = re.compile(r"(x-anthropic-billing-header: *cc_version=[\d.]+\.)[0-9a-f]+")


class Agent(NamedTuple):
    """Who sends: the main agent of a session has no ``id``."""

    session: str
    id: str

    @property
    def is_main(self) -> bool:
        return not self.id


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request of a trace. ``after``: indices of the requests that must be answered first."""

    index: int
    t_s: float
    agent: Agent
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    after: tuple[int, ...] = ()


def read_trace(file: Path) -> list[Recorded]:
    """All requests of ``file`` in its order, with the order they need among themselves."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in filter(str.strip, lines)]
        requests = parse(records)
    except OSError as error:
        raise ConfigError(f"can't read the trace {file}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file} is not a trace: {type(error).__name__}: {error}") from None
    if not requests:
        raise ConfigError(f"the trace {file} is empty")
    return requests


def parse(records: Sequence[dict[str, Any]]) -> list[Recorded]:
    """Requests as they are in a file, with the order they need among themselves."""
    requests = [_parse(n, raw) for n, raw in enumerate(records)]
    return requests if any("after" in raw for raw in records) else order(requests)


def order(requests: Sequence[Recorded]) -> list[Recorded]:
    """Fill in ``after``. An agent's requests follow each other; its first one follows what others
    had sent clearly earlier; the main agent waits for its sub-agents."""
    return [replace(one, after=tuple(_after(one, requests[: one.index]))) for one in requests]


def vary_billing(request: Recorded) -> Recorded:
    """Give the billing line a version suffix of the agent's own, as real clients do."""
    system = request.body.get("system")
    if not isinstance(system, list) or not system:
        return request
    suffix = hashlib.sha256("/".join(request.agent).encode()).hexdigest()[:3]
    body = copy.deepcopy(request.body)
    first = body["system"][0]
    first["text"] = _BILLING.sub(rf"\g<1>{suffix}", first.get("text", ""), count=1)
    return replace(request, body=body)


def _parse(index: int, raw: dict[str, Any]) -> Recorded:
    headers = {name.lower(): value for name, value in raw["headers"].items()}
    session = headers.get("x-claude-code-session-id", "")
    agent = Agent(session, headers.get("x-claude-code-agent-id", ""))
    after = tuple(int(n) for n in raw.get("after", ()))
    if not all(0 <= n < index for n in after):
        raise ValueError(f"line {index} waits for lines that are not before it")
    return Recorded(index, float(raw["t"]), agent, raw["path"], headers, dict(raw["body"]), after)


def _after(one: Recorded, earlier: Sequence[Recorded]) -> Iterable[int]:
    own = [other.index for other in earlier if other.agent == one.agent]
    yield from own[-1:]
    for other in earlier:
        if other.agent == one.agent:
            continue
        starts_later = not own and other.t_s < one.t_s - SIDE_BY_SIDE_S
        is_child = one.agent.is_main and other.agent.session == one.agent.session
        if starts_later or is_child:
            yield other.index

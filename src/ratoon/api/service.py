"""What the HTTP edge needs: the parts it calls and its settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ratoon import wire
from ratoon.api.diagnostics import Fingerprints
from ratoon.api.forms import ConversationForms
from ratoon.api.think import Signer, ThinkSwitch
from ratoon.chat.render import Prompt
from ratoon.engine.request import Guide, Request, SamplingParams
from ratoon.keys import Key, KeyRing, Role, digest_of
from ratoon.metrics import Metrics
from ratoon.reuse.replies import ReplyMemory
from ratoon.router.desk import Desk
from ratoon.router.router import Router


class Engine(Protocol):
    """The part of the engine that HTTP uses. Every method may be called from any thread."""

    @property
    def model_name(self) -> str: ...

    @property
    def n_ctx(self) -> int:
        """Most tokens, prompt and reply, that one request may hold."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Of a saved state that can be cut."""
        ...

    def submit(self, request: Request) -> None:
        """Queue a request; ``Overloaded`` when the queue is full."""
        ...

    def cancel(self, request_id: str) -> None:
        """Stop a request; does nothing if it has ended."""
        ...

    def match_length(self, tokens: list[int]) -> int:
        """How many leading tokens some tier already holds."""
        ...

    def evict(self) -> int:
        """Give up what no running request needs, but for states on disk; returns how many."""
        ...

    def inspect(self) -> dict[str, object]:
        """A JSON-able view of slots, queue and tiers."""
        ...


class Renderer(Protocol):
    """Turns a request into tokens. Called from worker threads, several at once."""

    def render(
        self, request: wire.CountTokensRequest, *, hoist: bool = True, thinks: bool = False
    ) -> Prompt: ...


class Guides(Protocol):
    """Makes the constraints of replies. Called from worker threads, several at once."""

    def guide(self, request: wire.MessagesRequest, prompt: Prompt) -> Guide | None:
        """None where the reply is free. Raises InvalidRequest for a schema that can't be kept."""
        ...


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """``sampling`` is what a request gets where it says nothing."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_body_bytes: int = 32 * 1024 * 1024
    ping_s: float = 5.0
    commit_s: float = 1.0  # how long a reply may still turn into an HTTP error status
    retry_after_s: int = 5


def key_ring(api_key: str | None, file: Path | None = None, inner: str = "") -> KeyRing:
    """The server's own key, which is an admin's, those of a file, and the one that the server uses
    with itself. Raises ConfigError."""
    own = [Key("", digest_of(api_key.encode()), Role.ADMIN)] if api_key else []
    return KeyRing(own, file, Key("_inner", digest_of(inner.encode())) if inner else None)


@dataclass(frozen=True, slots=True)
class Service:
    """Everything a route may use."""

    engine: Engine
    renderer: Renderer
    guides: Guides | None = None
    metrics: Metrics = field(default_factory=Metrics)
    keys: KeyRing = field(default_factory=KeyRing)
    settings: ApiSettings = field(default_factory=ApiSettings)
    think: ThinkSwitch = field(default_factory=ThinkSwitch)
    signer: Signer = field(default_factory=Signer)
    forms: ConversationForms = field(default_factory=ConversationForms)
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    replies: ReplyMemory | None = None  # None: every reply is rendered as the client wrote it
    router: Router | None = None  # None: no domains
    desk: Desk | None = None  # None: queries are routed only
    clock: Callable[[], float] = time.monotonic

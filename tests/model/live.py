"""A whole server on a real model, for as long as a test needs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ratoon.api.service import Renderer
from ratoon.build import build
from ratoon.config import Settings
from ratoon.engine.engine import Engine
from ratoon.reuse.replies import ReplyMemory
from ratoon.router.execute import Functions
from tests.server.scripted import serving

Running = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Live:
    """A running server and its inner parts."""

    url: str
    engine: Engine
    renderer: Renderer
    replies: ReplyMemory | None

    @property
    def running(self) -> Running:
        """What ``inspect`` says of the running requests."""
        running: Any = self.engine.inspect()["running"]
        return list(running)

    def wait_for(self, what: Callable[[Running], bool], limit_s: float = 60.0) -> Running:
        """The running requests once ``what`` holds for them; fails if it never does."""
        deadline = time.monotonic() + limit_s
        while not what(running := self.running):
            assert time.monotonic() < deadline, f"it did not happen: {running}"
            time.sleep(0.005)
        return running

    def wait_until_idle(self, limit_s: float = 60.0) -> None:
        """No request holds a slot any more."""
        self.wait_for(lambda running: not running, limit_s)
        assert self.engine.inspect()["waiting"] == []

    def offload(self) -> None:
        """Move what is parked on the device to host memory, as eviction does."""
        with self.engine._lock:
            assert self.engine.cache.offload_all(time.monotonic())


@contextmanager
def live(settings: Settings, functions: Functions | None = None) -> Iterator[Live]:
    """Build a server, listen on a free port, and stop both at the end. What it keeps on disk goes
    with it, unless the settings name a folder."""
    with TemporaryDirectory() as folder:
        own = {} if settings.cache_dir else {"cache_dir": Path(folder)}
        server = build(settings.model_copy(update=own), functions=functions)
        app: Any = server.app
        server.engine.start()
        try:
            with serving(app, has_lifespan=True) as url:
                service = app.state.service
                yield Live(url, server.engine, service.renderer, service.replies)
        finally:
            server.engine.stop()
            server.close()

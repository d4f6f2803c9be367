"""``ratoon serve``: load a model and answer requests until a signal comes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ratoon.cli.console import stderr
from ratoon.cli.flags import with_settings
from ratoon.config import DEFAULT_URL, Settings
from ratoon.errors import ConfigError
from ratoon.logs import set_up_logging

if TYPE_CHECKING:
    from ratoon.build import Server
    from ratoon.engine.engine import Engine

GRACE_S = 3  # open streams get this long to end once the engine has stopped
KEEP_ALIVE_S = 75  # agents pause between requests; a connection outlives the pause


def run(settings: Settings) -> None:
    """Start the server: the Anthropic Messages API on a local model."""
    set_up_logging(settings.log_level)
    # bound first: a taken port is told before the model loads, not after
    with _bind(settings.host, settings.port) as listener:
        _die_on_signals()
        server = _build(settings)
        server.engine.start()
        _announce(settings, server, listener)
        _serve(server, listener)
        server.close()
    stderr.print("stopped", style="dim")


serve = with_settings(run)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()  # from here on, a second server on this port is refused
    except OSError as error:
        listener.close()
        hint = "; is another server running? Choose a port with --port" if port else ""
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror}{hint}") from None
    return listener


def _build(settings: Settings) -> Server:
    # imported late: the bindings load llama.cpp, which no other command needs
    from ratoon.build import build

    columns = (TextColumn("loading the model"), BarColumn(), TimeElapsedColumn())
    hidden = not stderr.is_terminal
    with Progress(*columns, console=stderr, transient=True, disable=hidden) as bar:
        task = bar.add_task("load", total=1.0)
        return build(settings, lambda share: bar.update(task, completed=share))


def _announce(settings: Settings, server: Server, listener: socket.socket) -> None:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    where = "" if url == DEFAULT_URL else f" --url {url}"
    lines = [
        f"Ratoon serves {server.engine.model_name} at {url}",
        f"window: {server.engine.n_ctx:,} tokens",
        f"next: `ratoon claude{where}` in another terminal starts Claude Code on it; "
        "any Anthropic client works with the address above",
        "stop: Ctrl-C",
    ]
    if settings.key or settings.keys_file:
        lines.append("clients must send an API key")
    for line in lines:
        stderr.print(line, markup=False, soft_wrap=True)


def _serve(server: Server, listener: socket.socket) -> None:
    config = uvicorn.Config(
        server.app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GRACE_S,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    # uvicorn raises the signal again once it has shut down
    _ignore_signal_once()
    _Uvicorn(config, server.engine).run(sockets=[listener])


class _Uvicorn(uvicorn.Server):
    """Stops the engine first, so that open streams end with a word instead of being cut."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopping = threading.Thread(target=self._engine.stop, daemon=True)
        stopping.start()
        # a step under way can't be interrupted and may take seconds; a second Ctrl-C can
        while stopping.is_alive() and not self.force_exit:
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def _die_on_signals() -> None:
    """A signal ends the process at once: there is nothing to save yet, and an exception raised in
    llama.cpp's load callback would be swallowed."""

    def die(number: int, frame: FrameType | None) -> None:
        stderr.show_cursor(True)
        os._exit(128 + number)

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, die)


def _ignore_signal_once() -> None:
    def ignore(number: int, frame: FrameType | None) -> None:
        _die_on_signals()

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, ignore)

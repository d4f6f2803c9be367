"""The two sides of a comparison: how each is started, and what it was given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from ratoon.bench import peer
from ratoon.bench.process import Process, ServerFailed, ratoon_command
from ratoon.bench.sending import ReplayOptions
from ratoon.errors import ConfigError

RATOON = "ratoon"
SLOTS = "slots"  # the folder of the peer's slot files


class Server(Protocol):
    """Where requests go."""

    @property
    def url(self) -> str: ...

    def restart(self) -> None:
        """Stop it as a service manager does and start it again in the same folder."""


class Side(Protocol):
    """Something that can be measured."""

    @property
    def name(self) -> str: ...

    def running(self, folder: Path) -> contextlib.AbstractContextManager[Server]:
        """A new server that keeps what it keeps in ``folder``."""

    def to_json(self) -> dict[str, Any]:
        """What it was given."""


@dataclass(frozen=True, slots=True)
class Local:
    """A server that is started here. ``command`` gets the folder it may write to.

    ``saves_slots``: by hand, over llama-server's own API, its slots are written to files before it
    is stopped and read back once it runs again.
    """

    name: str
    command: Callable[[Path], list[str]]
    facts: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    saves_slots: bool = False

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        folder.mkdir(parents=True)
        process = Process(folder, self.command(folder), self.env)
        try:
            process.start()
            yield _Running(process, self.saves_slots)
        finally:
            process.kill()

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.facts, "env": dict(self.env)}


@dataclass(frozen=True, slots=True)
class Remote:
    """A server that runs somewhere and is left running: what it has cached stays from pair to
    pair."""

    name: str
    url: str

    @contextlib.contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        yield self

    def restart(self) -> None:
        raise ConfigError(f"{self.url} can't be restarted from here")

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "url": self.url}


@dataclass(frozen=True, slots=True)
class _Running:
    process: Process
    saves_slots: bool

    @property
    def url(self) -> str:
        return self.process.url

    def restart(self) -> None:
        if self.saves_slots:
            _act_on_slots(self.url, "save")
        self.process.stop()
        self.process.start()
        if self.saves_slots:
            _act_on_slots(self.url, "restore")


def ratoon_side(options: peer.PeerOptions) -> Local:
    """Ratoon as it comes, with the peer's model, threads and number of cells."""
    flags = {
        "--model": str(options.model),
        "--n-cells": str(options.n_cells),
        "--threads": str(options.threads),
    }
    if options.chat_template:
        flags["--chat-template"] = str(options.chat_template)

    def command(folder: Path) -> list[str]:
        states = ("--cache-dir", str(folder / "states"))
        return ratoon_command(*(part for flag in flags.items() for part in flag), *states)

    return Local(RATOON, command, {"flags": _without_folders(flags)})


def peer_side(
    name: str, options: peer.PeerOptions, preset: peer.Params, *, saves_slots: bool = False
) -> Local:
    """llama-server with ``preset`` on top of what both are given."""
    params = options.params(preset)

    def command(folder: Path) -> list[str]:
        if not saves_slots:
            return peer.peer_command(params)
        slots = folder / SLOTS
        slots.mkdir(exist_ok=True)
        return peer.peer_command({**params, "slot_save_path": f"{slots}/"})

    facts = {"params": _without_folders(params), "saves_slots": saves_slots}
    return Local(name, command, facts, saves_slots=saves_slots)


def options_for(server: Server, max_tokens: int) -> ReplayOptions:
    """How requests are sent to it."""
    return ReplayOptions(url=server.url, max_tokens=max_tokens)


def _without_folders(given: Mapping[str, Any]) -> dict[str, Any]:
    """For a report: files by their names alone."""
    return {k: Path(v).name if isinstance(v, str) else v for k, v in given.items()}


def _act_on_slots(url: str, action: str) -> None:
    """Save or restore what each slot holds; a slot that holds nothing has no file."""
    try:
        with httpx.Client(base_url=url, timeout=600, trust_env=False) as client:
            for slot in client.get("/slots").raise_for_status().json():
                file = {"filename": f"{slot['id']}.bin"}
                client.post(f"/slots/{slot['id']}", params={"action": action}, json=file)
    except httpx.HTTPError as error:
        raise ServerFailed(f"can't {action} the slots of {url}: {error}") from None

"""llama-server, the peer to compare with: the one in the package ``xllamacpp``.

    python -m ratoon.bench.peer PARAMS

runs it in this process until a signal comes. ``PARAMS`` is a JSON object of ``CommonParams``
fields; a dotted name reaches into a part (``cpuparams.n_threads``). Names and values are
llama-server's own, so what a report says of a run can be given to the real program.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratoon.errors import ConfigError

Params = Mapping[str, Any]

PACKAGE = "xllamacpp"
TEMPLATE_FILE = "chat_template_file"  # the flag's name; the field takes the text

# What the program sets when it is told nothing: four slots in one KV cache.
DEFAULTS: Params = {"n_parallel": 4, "kv_unified": True}
# Settings that serve agents better, each where its workload gains by it. Every agent has a slot
# of its own, all slots share one KV cache that holds all of them, so none is saved and cleared when
# another starts; a step is one computation long; the host cache is not bounded.
BEST: Params = {
    "kv_unified": True,
    "n_batch": 512,
    "cache_ram_mib": -1,
    "cache_idle_slots": False,
}
# The gaps of running replies are as long as a step: short ones favour them, and make every prompt
# take longer.
SHORT_STEPS: Params = {"n_batch": 128, "n_ubatch": 128}
# Where text went away in front of text that stayed, move the latter's cache to its new place. This
# is approximate, as it was computed behind other text; where text was replaced, nothing is moved.
SHIFT: Params = {"n_cache_reuse": 256}


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """What both servers are given alike."""

    model: Path
    n_cells: int
    threads: int
    chat_template: Path | None = None

    def params(self, preset: Params) -> dict[str, Any]:
        """Everything that is set, in llama-server's names."""
        template = {TEMPLATE_FILE: str(self.chat_template)} if self.chat_template else {}
        return {
            "model.path": str(self.model),
            "n_ctx": self.n_cells,
            "cpuparams.n_threads": self.threads,
            "cpuparams_batch.n_threads": self.threads,
            "n_gpu_layers": 0,
            "fit_params": False,  # it would change what is asked for here
            **template,
            **preset,
        }


def peer_command(params: Params) -> list[str]:
    """The command that runs it."""
    return [sys.executable, "-m", "ratoon.bench.peer", json.dumps(dict(params))]


def check_installed() -> None:
    """Say what to install if the peer is missing."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(
            f"llama-server comes from the package {PACKAGE}, which is not installed: "
            "pip install 'ratoon[bench]'"
        )


def version() -> str:
    """The version of the package."""
    return importlib.metadata.version(PACKAGE)


def build_info() -> dict[str, str]:
    """Version and what llama.cpp was compiled for."""
    import xllamacpp

    return {"package": f"{PACKAGE} {version()}", "system": xllamacpp.get_system_info().strip()}


def serve(params: Params) -> None:
    """Run llama-server until SIGINT or SIGTERM."""
    import xllamacpp

    common = xllamacpp.CommonParams()
    for name, value in params.items():
        set_param(common, name, value)
    signals = {signal.SIGINT, signal.SIGTERM}
    # blocked before the server's threads start, so that the signal comes here
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = xllamacpp.Server(common)
    sys.stderr.write(f"llama-server listens at {server.listening_address}\n")
    sys.stderr.flush()
    signal.sigwait(signals)


def set_param(common: Any, name: str, value: Any) -> None:
    """Set a field of ``CommonParams`` or of a part of it."""
    if name == TEMPLATE_FILE:
        name, value = "chat_template", Path(value).read_text(encoding="utf-8")
    *path, last = name.split(".")
    for part in path:
        common = getattr(common, part)
    if not hasattr(common, last):
        raise ConfigError(f"llama-server has no parameter {name}")
    setattr(common, last, value)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))

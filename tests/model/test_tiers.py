"""Whatever a state goes through in tiers, restarts or damage: logits are those of a cold run."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from ratoon.cache.source import Tier
from ratoon.disk.files import StateFiles
from ratoon.disk.fingerprint import Fingerprint
from ratoon.disk.store import DiskConfig, DiskStore
from ratoon.engine.llama import LlamaModel, load_model
from tests.model.twins import OPTIONS, Bench, load_cold

pytestmark = pytest.mark.model

KINDS = ["llama", "gemma3", "mamba2", "qwen35"]  # one of each kind of memory
LONG_S = 60.0
N_DISK_STATES = 6  # about as many fit into the budget
SEEDS = st.integers(0, 2**32)


class Tiers(RuleBasedStateMachine):
    """One folder, and engines on it one after the other."""

    path: Path
    cold: LlamaModel
    layers: Counter[str]
    counts: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())

    @initialize(seed=SEEDS, is_torn=st.booleans())
    def begin(self, seed: int, is_torn: bool) -> None:
        model, self.store = self.load()
        self.bench = Bench(model, self.cold, random.Random(0), store=self.store)
        self.bench.layers = self.layers
        self.converse(seed)
        self.damage(seed, is_torn, is_restarted=True)

    def load(self) -> tuple[LlamaModel, DiskStore]:
        """What a new process begins with."""
        model = load_model(self.path, OPTIONS)
        shape = model.shape
        n_bytes = N_DISK_STATES * (80 * shape.bytes_per_token + shape.state_bytes)
        fingerprint = Fingerprint(self.path.name, "", "f32", "off", shape.memory.value)
        return model, DiskStore(self.folder, fingerprint, DiskConfig(n_bytes))

    @rule(seed=SEEDS)
    def converse(self, seed: int) -> None:
        """Requests that fork, extend, edit or repeat what is known, with accidents in between."""
        self.bench.rng.seed(seed)
        self.bench.script()

    @rule(seed=SEEDS)
    def rest(self, seed: int) -> None:
        self.idle()
        self.converse(seed)

    def idle(self) -> None:
        """Long enough for states to be written."""
        for _ in range(3):
            self.bench.now += 10
            self.bench.engine.step()
            assert self.store.flush(LONG_S)

    @rule(seed=SEEDS, tier=st.sampled_from(Tier))
    def evict(self, seed: int, tier: Tier) -> None:
        rng = random.Random(seed)
        cache = self.bench.engine.cache
        match tier:
            case Tier.DEVICE:
                cache.offload_all(self.bench.now)
            case Tier.HOST:
                for node in list(cache.tree.root.subtree()):
                    if node.snapshot is not None and rng.random() < 0.7:
                        cache.forget(node.snapshot)
            case Tier.DISK:  # as another process does it
                for file in self.states():
                    if rng.random() < 0.5:
                        file.unlink()
        self.converse(seed)

    @rule(seed=SEEDS, is_torn=st.booleans(), is_restarted=st.booleans())
    def damage(self, seed: int, is_torn: bool, is_restarted: bool) -> None:
        """A new process must look at what is damaged: it has nothing else."""
        rng = random.Random(seed)
        self.idle()
        for file in self.states():
            data = bytearray(file.read_bytes())
            if rng.random() < 0.2 or len(data) < 2:
                continue
            place = rng.randrange(1, len(data))
            data[place] ^= 1
            # another file takes its place: a mapped one never changes
            file.unlink()
            file.write_bytes(data[:place] if is_torn else data)
        if is_restarted:
            self.begin_anew(is_killed=True)
            for prompt in self.bench.known[-3:]:
                self.bench.ask(prompt)
        self.converse(seed)

    @rule(seed=SEEDS, is_killed=st.booleans())
    def restart(self, seed: int, is_killed: bool) -> None:
        self.begin_anew(is_killed)
        self.converse(seed)

    def begin_anew(self, is_killed: bool) -> None:
        """Killed, it saves nothing on the way out and loses what was not yet written."""
        if is_killed:
            self.store.close(LONG_S)
            self.bench.model.close()
        else:
            self.bench.engine.stop()
        self.counts.update(self.store.stats())
        model, self.store = self.load()
        self.bench.open(model, self.store)

    def states(self) -> list[Path]:
        """All files; the store is not about to change any."""
        assert self.store.flush(LONG_S)
        files = StateFiles(self.folder)
        return [files.path(key) for key in sorted(files.sizes())]

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.engine.stop()
            self.counts.update(self.store.stats())
            assert not self.bench.failures
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_a_cold_run(tiny_path: Callable[[str], Path], name: str) -> None:
    path = tiny_path(name)
    seen: dict[str, Any] = {
        "path": path,
        "cold": load_cold(path),
        "layers": Counter(),
        "counts": Counter(),
    }
    machine = type(f"Tiers_{name}", (Tiers,), seen)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=6,
                stateful_step_count=16,
                derandomize=True,
                phases=[Phase.generate],  # to shrink takes longer than to read the log
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )
    finally:
        seen["cold"].close()
    # it was about all of them
    assert set(seen["layers"]) == {"cold", "device", "host", "disk"}
    for what in ("disk_written", "disk_loaded", "disk_evicted", "disk_bad"):
        assert seen["counts"][what] > 0, what

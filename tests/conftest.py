"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ratoon.weights import embedded_weights
from tests.synthetic import cut_layers

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TEMPLATES = Path(__file__).parent / "templates"
SYNTHETIC = Path(__file__).parent / "synthetic.py"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model, whole: slow, mark its tests with ``model``."""
    return embedded_weights()


@pytest.fixture(scope="session")
def cut4_path(smollm2_path: Path, pytestconfig: pytest.Config) -> Path:
    """The embedded model's first four layers, with a chat template that knows tools and a window
    wide enough for a coding agent's prompt. Kept between runs, as making it takes seconds."""
    return _cut(smollm2_path, 4, pytestconfig)


@pytest.fixture(scope="session")
def cut1_path(smollm2_path: Path, pytestconfig: pytest.Config) -> Path:
    """As ``cut4_path``, with one layer: for long sessions whose replies are forced."""
    return _cut(smollm2_path, 1, pytestconfig)


def _cut(source: Path, n_layers: int, config: pytest.Config) -> Path:
    template = (TEMPLATES / "chatml_tools.jinja").read_text(encoding="utf-8")
    recipe = f"{source.stat().st_size} {SYNTHETIC.read_text(encoding='utf-8')} {template}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    assert config.cache is not None
    file = config.cache.mkdir("models") / f"cut{n_layers}-{digest}.gguf"
    if not file.is_file():
        # renamed when whole, so that an interrupted run leaves no torn model
        part = file.with_suffix(f".{os.getpid()}")
        cut_layers(source, part, n_layers, template, n_ctx_train=32768).rename(file)
    return file

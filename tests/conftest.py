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
    template = (TEMPLATES / "chatml_tools.jinja").read_text(encoding="utf-8")
    recipe = f"{smollm2_path.stat().st_size} {SYNTHETIC.read_text(encoding='utf-8')} {template}"
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    assert pytestconfig.cache is not None
    file = pytestconfig.cache.mkdir("models") / f"cut4-{digest}.gguf"
    if not file.is_file():
        # renamed when whole, so that an interrupted run leaves no torn model
        part = file.with_suffix(f".{os.getpid()}")
        cut_layers(smollm2_path, part, chat_template=template, n_ctx_train=32768).rename(file)
    return file

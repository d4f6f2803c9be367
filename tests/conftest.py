"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ratoon.bench.suite import TOOL_TEMPLATE
from ratoon.weights import embedded_weights
from tests.synthetic.cut import cut_layers
from tests.synthetic.tiny import write_tiny

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

TEMPLATES = Path(__file__).parent / "templates"
SYNTHETIC = Path(__file__).parent / "synthetic"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded model, whole: slow, mark its tests with ``model``."""
    return embedded_weights()


@pytest.fixture(scope="session")
def tools_template() -> str:
    """A chat template that knows tools."""
    return TOOL_TEMPLATE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def cut4_path(smollm2_path: Path, tools_template: str, pytestconfig: pytest.Config) -> Path:
    """The embedded model's first four layers, with a chat template that knows tools and a window
    wide enough for a coding agent's prompt."""
    return _cut(4, smollm2_path, tools_template, pytestconfig)


@pytest.fixture(scope="session")
def cut1_path(smollm2_path: Path, tools_template: str, pytestconfig: pytest.Config) -> Path:
    """As ``cut4_path``, with one layer: for long sessions whose replies are forced."""
    return _cut(1, smollm2_path, tools_template, pytestconfig)


def _cut(n_layers: int, source: Path, template: str, config: pytest.Config) -> Path:
    recipe = f"{source.stat().st_size} {_source('cut')} {template}"

    def make(file: Path) -> None:
        cut_layers(source, file, n_layers, template, n_ctx_train=32768)

    return _kept(config, f"cut{n_layers}", recipe, make)


@pytest.fixture(scope="session")
def tiny_path(
    smollm2_path: Path, tools_template: str, pytestconfig: pytest.Config
) -> Callable[[str], Path]:
    """A tiny model of an architecture in ``RECIPES``, with the embedded model's tokenizer."""
    recipe = f"{smollm2_path.stat().st_size} {_source('tiny')} {tools_template}"

    def find(name: str) -> Path:
        def make(file: Path) -> None:
            write_tiny(name, smollm2_path, file, tools_template)

        return _kept(pytestconfig, name, recipe, make)

    return find


def _source(module: str) -> str:
    return (SYNTHETIC / f"{module}.py").read_text(encoding="utf-8")


def _kept(config: pytest.Config, name: str, recipe: str, make: Callable[[Path], None]) -> Path:
    """Kept between runs, as making a model takes seconds."""
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:12]
    assert config.cache is not None
    file = config.cache.mkdir("models") / f"{name}-{digest}.gguf"
    if not file.is_file():
        # renamed when whole, so that an interrupted run leaves no torn model
        part = file.with_suffix(f".{os.getpid()}")
        make(part)
        part.rename(file)
    return file

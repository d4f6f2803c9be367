"""What the project's files promise each other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ratoon.config import Settings

ROOT = Path(__file__).parents[2]


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_the_lock_holds_every_dependency_at_one_version_and_no_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert {name_of(requirement) for requirement in wanted} <= {name_of(pin) for pin in pins}
    assert [pin for pin in pins if not re.match(r"[\w.-]+==[\w.]+( ; .+)?$", pin)] == []


def test_the_readme_tells_every_setting() -> None:
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Settings")[2]
    rows = "".join(line for line in table.splitlines() if line.startswith("| `"))
    assert [name for name in Settings.model_fields if f"`{name}`" not in rows] == []

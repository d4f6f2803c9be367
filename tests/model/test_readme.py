"""What the README shows is run as it stands; only the server's address is another."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ratoon.config import DEFAULT_URL, Settings
from tests.model.live import Live, live

pytestmark = pytest.mark.model

README = Path(__file__).parents[2] / "README.md"
ADDRESS = urlsplit(DEFAULT_URL).netloc
TIMEOUT_S = 120

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:\A|\n\n)((?:(?: {4}.*)?\n)*(?: {4}.*)(?=\n))")


def blocks() -> list[tuple[str, str]]:
    """Language and text of each code block; an indented one names no language."""
    text = README.read_text(encoding="utf-8")
    fenced = [(match[1], match[2]) for match in _FENCED.finditer(text)]
    rest = _FENCED.sub("", text)
    lines = [match[1].splitlines() for match in _INDENTED.finditer(rest)]
    return fenced + [("", "\n".join(line[4:] for line in block)) for block in lines]


SHELL = [code for name, code in blocks() if name in ("", "sh", "bash") and code[:5] == "curl "]
PYTHON = [code for name, code in blocks() if name == "python"]


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    """As ``make serve`` starts it, on another port."""
    with live(Settings()) as running:
        yield running


def run(command: list[str], code: str, server: Live) -> str:
    """The output of an example that must succeed."""
    assert ADDRESS in code
    env = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    done = subprocess.run(
        [*command, code.replace(ADDRESS, urlsplit(server.url).netloc)],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers(output: str) -> list[dict[str, Any]]:
    """The JSON values of a plain answer, or the events of a stream."""
    if output.startswith("event: "):
        lines = output.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    return [json.loads(output)]


def said(found: list[dict[str, Any]]) -> str:
    """The text of a whole message, or of a stream's events."""
    blocks = [block for answer in found for block in answer.get("content", [])]
    deltas = [answer.get("delta", {}) for answer in found]
    return "".join(part.get("text", "") for part in blocks + deltas)


def test_there_are_examples() -> None:
    assert SHELL
    assert PYTHON


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("code", SHELL)
def test_curl(server: Live, code: str) -> None:
    found = answers(run(["sh", "-ec"], code, server))
    assert found
    assert [answer for answer in found if answer.get("type") == "error" or "error" in answer] == []
    if "/v1/messages" in code and "count_tokens" not in code:
        assert said(found)


@pytest.mark.parametrize("code", PYTHON)
def test_python(server: Live, code: str) -> None:
    assert run([sys.executable, "-c"], code, server).strip()

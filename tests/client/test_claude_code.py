"""Claude Code, as users run it, against the embedded model."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.client.conftest import Drive
from tests.conftest import TEMPLATES

pytestmark = [pytest.mark.client, pytest.mark.model, pytest.mark.timeout(600)]

# the whole model: its first layers alone never end a reply
SERVER = ["--chat-template", str(TEMPLATES / "chatml_tools.jinja")]
FORMAT = ["--output-format", "stream-json", "--verbose", "--include-partial-messages"]


def test_a_session_continues_where_it_left_off(drive: Drive) -> None:
    outcome = drive(
        SERVER,
        [
            ["--bare", "-p", "hi", *FORMAT],
            ["--bare", "--continue", "-p", "and again", *FORMAT],
        ],
    )
    for run in outcome["runs"]:
        assert run["code"] == 0, run["err"]
        assert any(event["type"] == "content_block_delta" for event in stream(run))

    first, second = (n_prompt_and_cached(run) for run in outcome["runs"])
    assert first[0] > 500
    assert second[1] >= 0.95 * second[0]
    # what the client was told is what the engine did
    served = re.findall(r"req (\d+)\+\d+ \w+ reuse=(\d+)", outcome["log"])
    assert [(int(n), int(reused)) for n, reused in served] == [first, second]


def events(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The client's JSON lines; the line before them is the command itself."""
    return [json.loads(line) for line in run["out"].splitlines() if line.startswith("{")]


def stream(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The API's events as the client passed them on."""
    return [line["event"] for line in events(run) if line["type"] == "stream_event"]


def n_prompt_and_cached(run: dict[str, Any]) -> tuple[int, int]:
    """Of the run's only request, as the client counts."""
    usage = next(line for line in events(run) if line["type"] == "result")["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached

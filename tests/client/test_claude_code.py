"""Claude Code, as users run it, against the embedded model, which says what it likes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ratoon.bench.suite import TOOL_TEMPLATE
from tests.client.conftest import open_stage
from tests.client.driver import Run
from tests.client.ground import Ground

pytestmark = [pytest.mark.client, pytest.mark.model, pytest.mark.timeout(600)]


def test_a_session_continues_where_it_left_off(
    ground: Ground, client_bin: Path, tmp_path: Path
) -> None:
    # the whole model: its first layers alone never end a reply
    flags = ("--chat-template", str(TOOL_TEMPLATE))
    with open_stage(ground, client_bin, tmp_path, flags, is_scripted=False) as stage:
        prompts = (["-p", "hi"], ["--continue", "-p", "and again"])
        runs = [stage.client.run(stage.server.url, "--bare", *prompt) for prompt in prompts]
        log = stage.server.log
    for run in runs:
        assert any(event["type"] == "content_block_delta" for event in run.stream)

    first, second = (n_prompt_and_cached(run) for run in runs)
    assert first[0] > 500
    assert second[1] >= 0.95 * second[0]
    # what the client was told is what the engine did
    served = re.findall(r"req (\d+)\+\d+ \w+ reuse=(\d+)", log)
    assert [(int(n), int(reused)) for n, reused in served] == [first, second]


def n_prompt_and_cached(run: Run) -> tuple[int, int]:
    """Of the run's only request, as the client counts."""
    usage = run.result["usage"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached, cached

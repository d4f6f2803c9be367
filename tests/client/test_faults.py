"""Sessions in which something goes wrong: the client and the server recover without loss."""

from __future__ import annotations

import pytest

from tests.client.checks import check_calm, check_extends, check_reused, check_session
from tests.client.conftest import Stages
from tests.client.driver import wait_for

pytestmark = [pytest.mark.client, pytest.mark.model, pytest.mark.timeout(600)]

BARE = "--bare"


def test_tools_that_fail_and_calls_that_are_none(stage_with: Stages) -> None:
    stage = stage_with("--n-ctx", "8192")
    run, records = stage.play("loose", BARE)
    assert [bool(result.get("is_error")) for result in run.tool_results] == [True] * 3
    assert len(records) == 4
    # what is no call is text, and reaches the user whole
    assert run.result["result"].startswith("<tool_call>")
    check_session(records)

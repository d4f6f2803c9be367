"""The order that a replay keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratoon.bench.trace import Agent, Recorded, order, read_trace, vary_billing
from ratoon.errors import ConfigError

BILLING = "x-anthropic-billing-header: cc_version=2.1.332.{}; cc_entrypoint=cli;"


def trace(*senders: tuple[float, str]) -> list[Recorded]:
    """Requests of one session; ``""`` is the main agent."""
    return order(
        [
            Recorded(n, t, Agent("s", agent), "/v1/messages", {}, {})
            for n, (t, agent) in enumerate(senders)
        ]
    )


def test_an_agent_sends_one_after_another() -> None:
    assert [one.after for one in trace((0, ""), (1, ""), (2, ""))] == [(), (0,), (1,)]


def test_children_start_together_after_their_parent_and_it_waits_for_them() -> None:
    requests = trace((0, ""), (1.0, "a"), (1.1, "b"), (1.5, "b"), (1.5, "a"), (3, ""))
    assert [one.after for one in requests] == [(), (0,), (0,), (2,), (1,), (0, 1, 2, 3, 4)]


def test_sessions_do_not_wait_for_each_other_once_begun() -> None:
    one, two = Agent("1", ""), Agent("2", "")
    requests = order(
        [
            Recorded(n, t, agent, "/", {}, {})
            for n, (t, agent) in enumerate([(0.0, one), (0.1, two), (1.0, two), (1.1, one)])
        ]
    )
    assert [item.after for item in requests] == [(), (), (1,), (0,)]


def test_each_agent_gets_a_billing_line_of_its_own() -> None:
    body = {"system": [{"type": "text", "text": BILLING.format("abc")}, {"text": "more"}]}
    texts = set()
    for agent in "ab":
        varied = vary_billing(Recorded(0, 0, Agent("s", agent), "/", {}, body))
        assert varied.body["system"][1] == {"text": "more"}
        texts.add(varied.body["system"][0]["text"])
    assert len(texts) == 2
    assert all(text.endswith("; cc_entrypoint=cli;") for text in texts)
    assert body["system"][0]["text"] == BILLING.format("abc")


@pytest.mark.parametrize("body", [{}, {"system": "plain"}, {"system": []}])
def test_no_billing_line_no_change(body: dict[str, object]) -> None:
    request = Recorded(0, 0, Agent("s", ""), "/", {}, body)
    assert vary_billing(request) is request


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    headers = {"X-Claude-Code-Session-Id": "s", "x-claude-code-agent-id": "a"}
    line = {"t": 1, "path": "/v1/messages", "headers": headers, "body": {"model": "m"}}
    file.write_text(json.dumps(line) + "\n\n")
    (request,) = read_trace(file)
    assert request.agent == Agent("s", "a")
    assert not request.agent.is_main


@pytest.mark.parametrize("text", ["", "[]", "{", '{"t": 1}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"t\.jsonl"):
        read_trace(file)
    with pytest.raises(ConfigError, match="can't read"):
        read_trace(tmp_path / "nothing")

"""The benchmark's commands: what they write, and what they refuse before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ratoon.cli
from ratoon.bench import peer
from ratoon.bench.trace import read_trace


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of ``ratoon bench ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["ratoon", "bench", *arguments])
    with pytest.raises(SystemExit) as caught:
        ratoon.cli.main()
    return int(caught.value.code or 0)


def test_a_trace_is_written_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = ["--agents", "12", "--sessions", "3", "--repositories", "2", "--scale", "0.02"]
    assert run(monkeypatch, "make-trace", "a.jsonl", *given) == 0
    assert run(monkeypatch, "make-trace", "b.jsonl", *given) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    agents = {request.agent for request in read_trace(tmp_path / "a.jsonl")}
    assert len(agents) == 12
    assert len({agent.session for agent in agents}) == 3


def test_a_shape_that_can_not_be_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "make-trace", "a.jsonl", "--agents", "501") == 2
    assert capsys.readouterr().err.strip() == "error: agents must be from 1 to 500"
    assert not (tmp_path / "a.jsonl").exists()
    assert run(monkeypatch, "make-trace", "no/such/folder.jsonl", "--agents", "2") == 2
    assert "can't write no/such/folder.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["forks", "fanout", "repo", "restart", "decode", "fairness", "all"]
)
def test_a_missing_peer_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setattr(peer, "PACKAGE", "no_such_package")
    assert run(monkeypatch, command) == 2
    assert "pip install 'ratoon[bench]'" in capsys.readouterr().err


def test_a_missing_model_or_trace_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:1"
    assert run(monkeypatch, "decode", "--model", "no.gguf", "--against", url) == 2
    assert "no.gguf" in capsys.readouterr().err
    assert run(monkeypatch, "compare", "no.jsonl", "--against", url) == 2
    assert "can't read the trace no.jsonl" in capsys.readouterr().err


def test_what_others_run_is_not_restarted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "restart", "--against", "http://127.0.0.1:1") == 2
    assert "can't be restarted from here" in capsys.readouterr().err

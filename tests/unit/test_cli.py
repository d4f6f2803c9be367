"""The command line: one line for a user's fault, and what Claude Code is told."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import httpx
import pytest

import ratoon.cli
from ratoon.cli.claude import (
    Health,
    client_env,
    fetch_health,
    told_window,
    write_private,
)
from ratoon.config import Settings, flag_name
from ratoon.errors import ConfigError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of ``ratoon ARGUMENTS``."""
    monkeypatch.setattr(sys, "argv", ["ratoon", *arguments])
    with pytest.raises(SystemExit) as caught:
        ratoon.cli.main()
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def answer(monkeypatch: pytest.MonkeyPatch, response: httpx.Response | Exception) -> None:
    """Make ``/health`` answer so."""

    def get(url: str, **_: object) -> httpx.Response:
        if isinstance(response, Exception):
            raise response
        response.request = httpx.Request("GET", url)
        return response

    monkeypatch.setattr(httpx, "get", get)


def test_version_and_help(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("ratoon 0.")
    assert run(monkeypatch, "serve", "--help") == 0
    shown = capsys.readouterr().out
    assert [name for name in Settings.model_fields if flag_name(name) not in shown] == []


def test_a_wrong_setting_is_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "serve", "--port", "70000") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: flag --port: ")


def test_a_missing_model_is_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ratoon.cli.serve, "_die_on_signals", lambda: None)
    assert run(monkeypatch, "serve", "--port", "0", "--model", "nowhere.gguf") == 2
    assert capsys.readouterr().err == "error: there is no model file nowhere.gguf\n"


def test_what_the_user_wrote_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    functions = ("--port", "0", "--tool-functions", "nowhere:x")
    assert run(monkeypatch, "serve", "--model", "dummy", *functions) == 2
    assert "can't load nowhere:x: No module" in capsys.readouterr().err


def test_claude_writes_private_settings_and_shows_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(monkeypatch, httpx.Response(200, json={"model": "m", "n_ctx": 40960}))
    arguments = ("--url", "http://h:1/", "--api-key", "k", "--no-run", "--", "-p", "say hi")
    assert run(monkeypatch, "claude", *arguments) == 0
    file = tmp_path / "ratoon" / "claude-settings.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    env = json.loads(file.read_text())["env"]
    assert env["ANTHROPIC_BASE_URL"] == "http://h:1"
    assert env["ANTHROPIC_AUTH_TOKEN"] == "k"
    assert f"claude --settings {file} -p 'say hi'" in capsys.readouterr().out


def test_claude_is_started_without_the_users_own_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answer(monkeypatch, httpx.Response(200, json={"model": "m", "n_ctx": 40960}))
    started: list[tuple[list[str], dict[str, str]]] = []

    def execvpe(file: str, command: list[str], env: dict[str, str]) -> None:
        started.append((command, env))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execvpe", execvpe)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "real")
    assert run(monkeypatch, "claude", "--", "--bare") == 0
    ((command, env),) = started
    assert command[0] == "claude"
    assert command[-1] == "--bare"
    assert "ANTHROPIC_API_KEY" not in env


def test_every_model_name_and_the_real_window_are_told() -> None:
    env = client_env("http://h", None, Health("m", 8192))
    named = {name for name, value in env.items() if value == "m"}
    assert {f"ANTHROPIC_DEFAULT_{kind}_MODEL" for kind in ("OPUS", "SONNET", "HAIKU")} <= named
    assert {"ANTHROPIC_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"} <= named
    assert env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == str(told_window(8192))
    assert env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "2048"
    assert env["ANTHROPIC_AUTH_TOKEN"]
    assert all(isinstance(value, str) for value in env.values())


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.ConnectError("refused"), "no server answers at http://h.*ratoon serve"),
        (httpx.Response(404), "http://h answered 404"),
        (httpx.Response(200, json={"status": "ok"}), "is not Ratoon"),
        (httpx.Response(200, json=["ok"]), "is not Ratoon"),
        (httpx.Response(200, text="<html>"), "is not Ratoon"),
    ],
)
def test_what_is_no_server_is_said(
    monkeypatch: pytest.MonkeyPatch, response: httpx.Response | Exception, words: str
) -> None:
    answer(monkeypatch, response)
    with pytest.raises(ConfigError, match=words):
        fetch_health("http://h")


def test_a_private_file_replaces_a_public_one(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("old")
    file.chmod(0o644)
    write_private(file, "new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [file]
    with pytest.raises(ConfigError, match="can't write"):
        write_private(file / "below", "new")

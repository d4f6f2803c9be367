"""``ratoon claude``: start Claude Code on a running Ratoon."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer

from ratoon.cli.console import stderr, stdout
from ratoon.config import DEFAULT_URL, env_name
from ratoon.errors import ConfigError

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}
COMFORTABLE_WINDOW = 24_576  # the client's own prompt is 11-19 K tokens before any work is done
MAX_OUTPUT = 8192
COMPACTION_RESERVE = 13_000  # tokens, besides a reply's, that the client wants free at all times
TIMEOUT_MS = 3_600_000  # a cold prefill on a CPU may take minutes; pings keep the stream alive
NO_KEY = "ratoon"  # the client insists on a token, a server without a key on none


@dataclass(frozen=True, slots=True)
class Health:
    """What a server says of itself."""

    model: str
    n_ctx: int


class NotRatoon(ConfigError):
    """Something else answers there."""


def claude(
    ctx: typer.Context,
    url: Annotated[str, typer.Option(help="Address of the server.")] = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=env_name("api_key"), help="The server's key.", show_default=False),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run/--no-run", help="Start Claude Code, or only write its settings.")
    ] = True,
) -> None:
    """Write a settings file for Claude Code and start it on the running server.

    What follows `--` goes to Claude Code: `ratoon claude -- -p "explain this folder"`.
    """
    url = url.rstrip("/")
    health = fetch_health(url, api_key)
    file = Path(typer.get_app_dir("ratoon")) / "claude-settings.json"
    write_private(file, json.dumps({"env": client_env(url, api_key, health)}, indent=2) + "\n")
    command = ["claude", "--settings", str(file), *ctx.args]
    _explain(health, file, command)
    if not run:
        return
    if shutil.which("claude") is None:
        stderr.print("claude is not on the PATH; install it, then run the command above")
        raise typer.Exit(1)
    # the user's real key must not travel to another server
    env = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"}
    os.execvpe(command[0], command, env)


def fetch_health(url: str, api_key: str | None = None) -> Health:
    """Ask the server for its model and window."""
    headers = {"x-api-key": api_key} if api_key else {}
    try:
        reply = httpx.get(f"{url}/health", headers=headers, timeout=10)
        reply.raise_for_status()
        body = reply.json()
        return Health(model=str(body["model"]), n_ctx=int(body["n_ctx"]))
    except httpx.HTTPStatusError as error:
        raise ConfigError(f"{url} answered {error.response.status_code} to /health") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        hint = "start one with `ratoon serve`, or give its address with --url"
        raise ConfigError(f"no server answers at {url} ({reason}); {hint}") from None
    except (ValueError, KeyError, TypeError):
        raise NotRatoon(f"what answers at {url} is not Ratoon") from None


def client_env(url: str, api_key: str | None, health: Health) -> dict[str, str]:
    """The environment Claude Code needs to work well with one local model."""
    names = (
        "ANTHROPIC_MODEL",
        "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "ANTHROPIC_DEFAULT_FABLE_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL",
    )
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": api_key or NO_KEY,
        **dict.fromkeys(names, health.model),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(told_window(health.n_ctx)),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_output(health.n_ctx)),
        "API_TIMEOUT_MS": str(TIMEOUT_MS),
        # text that differs from request to request would end every shared prefix
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        # tools that are seldom used stay out of the prompt until they are looked for
        "ENABLE_TOOL_SEARCH": "true",
        # tools that arrive late would change the head of the prompt
        "MCP_CONNECTION_NONBLOCKING": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def max_output(n_ctx: int) -> int:
    """The longest reply the client asks for."""
    return min(MAX_OUTPUT, n_ctx // 4)


def told_window(n_ctx: int) -> int:
    """The window as the client must hear it to make good use of ``n_ctx`` tokens.

    The client compacts a conversation that leaves less free than a reply and a reserve made for
    large windows. In a small window that is at once and again at every request, so this names one
    in which it happens when a quarter of the real one is left.
    """
    kept_free = max_output(n_ctx) + COMPACTION_RESERVE
    return n_ctx + max(0, kept_free - n_ctx // 4)


def write_private(file: Path, text: str) -> None:
    """Replace ``file`` at once, readable by its owner only: it may hold the API key."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # mkstemp makes the file with mode 600
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.name)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, file)
    except OSError as error:
        raise ConfigError(f"can't write {file}: {error.strerror}") from None


def _explain(health: Health, file: Path, command: list[str]) -> None:
    stderr.print(f"settings: {file}", markup=False, soft_wrap=True)
    if health.n_ctx < COMFORTABLE_WINDOW:
        stderr.print(
            f"the window of {health.model} is {health.n_ctx:,} tokens, less than Claude Code's own "
            "prompt needs; add `-- --bare` for its short one, or serve a model with a larger one",
            markup=False,
        )
    prefix = "env -u ANTHROPIC_API_KEY " if "ANTHROPIC_API_KEY" in os.environ else ""
    stdout.print(prefix + shlex.join(command), markup=False, highlight=False, soft_wrap=True)

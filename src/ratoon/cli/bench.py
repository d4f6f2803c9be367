"""``ratoon bench``: measure a running server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ratoon.bench.replay import ReplayOptions, Report, replay
from ratoon.bench.trace import read_trace
from ratoon.cli.claude import fetch_health
from ratoon.cli.console import stderr, stdout
from ratoon.config import DEFAULT_URL, env_name

app = typer.Typer(help="Measure a running server.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    pass


@app.command("replay")
def replay_command(
    trace: Annotated[Path, typer.Argument(help="JSON lines of recorded requests.")],
    url: Annotated[str, typer.Option(help="Address of the server.")] = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=env_name("api_key"), help="The server's key.", show_default=False),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of each reply.")] = 8,
    billing: Annotated[
        bool, typer.Option("--billing", help="Give each agent a billing line of its own.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here, too.")
    ] = None,
) -> None:
    """Send recorded agent traffic and show what was reused.

    Agents run side by side as they did when recorded; every reply is cut at a few tokens.
    """
    requests = read_trace(trace)
    health = fetch_health(url, api_key)
    stderr.print(f"{len(requests)} requests to {health.model} at {url}", markup=False)
    options = ReplayOptions(url=url, api_key=api_key, max_tokens=max_tokens, vary_billing=billing)
    report = replay(requests, options)
    stdout.print(_table(report))
    for result in report.errors:
        stderr.print(f"request {result.index}: {result.error}", style="red", markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    if report.errors:
        raise typer.Exit(1)


def _table(report: Report) -> Table:
    table = Table(show_footer=True)
    table.add_column("#", "total", justify="right")
    table.add_column("agent")
    table.add_column("prompt", f"{report.n_prompt:,}", justify="right")
    table.add_column("cache read", f"{report.n_cached:,}", justify="right")
    table.add_column("forwarded", f"{report.n_forwarded:,}", justify="right")
    table.add_column("first token s", justify="right")
    table.add_column("wall s", f"{report.wall_s:.2f}", justify="right")
    for one in report.results:
        ttft = "-" if one.ttft_s is None else f"{one.ttft_s:.2f}"
        counts = (f"{n:,}" for n in (one.n_prompt, one.n_cached, one.n_forwarded))
        table.add_row(str(one.index), one.agent[:8], *counts, ttft, f"{one.wall_s:.2f}")
    return table

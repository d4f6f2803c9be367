"""``ratoon bench``: measure a running server, or Ratoon against another one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ratoon.bench.load import LONG_WORDS, Decode, Fairness
from ratoon.bench.replay import ReplayOptions, Report, replay
from ratoon.bench.sessions import write
from ratoon.bench.shape import Shape, make_trace
from ratoon.bench.suite import (
    all_matches,
    decode_match,
    fairness_match,
    fanout_match,
    forks_match,
    replay_match,
    repo_match,
    restart_match,
)
from ratoon.bench.trace import read_trace
from ratoon.bench.workloads import (
    CLIENT,
    LONG_CLIENT,
    MAX_TOKENS,
    FanOut,
    Forks,
    Restart,
    SecondSession,
)
from ratoon.cli.claude import NotRatoon, fetch_health
from ratoon.cli.compare import Comparison, compare, comparing, making
from ratoon.cli.console import stderr, stdout
from ratoon.config import DEFAULT_URL, env_name
from ratoon.errors import ConfigError

Scale = Annotated[
    float,
    typer.Option(
        min=0.01,
        help="Length of all texts; 1: a prompt of about 6,000 tokens; take 0.2 for the embedded "
        "model on two cores.",
    ),
]

app = typer.Typer(help="Measure a server, or Ratoon against another one.", no_args_is_help=True)


@app.callback()
def _bench() -> None:
    pass


@app.command("replay")
def replay_command(
    trace: Annotated[Path, typer.Argument(help="JSON lines of recorded requests.")],
    url: Annotated[
        str, typer.Option("--url", "--against", help="Address of the server, Ratoon or not.")
    ] = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(envvar=env_name("api_key"), help="The server's key.", show_default=False),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of each reply.")] = MAX_TOKENS,
    billing: Annotated[
        bool, typer.Option("--billing", help="Give each agent a billing line of its own.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here, too.")
    ] = None,
) -> None:
    """Send recorded agent traffic to a running server and show what was reused.

    Agents run side by side as they did when recorded; every reply is cut at a few tokens.
    """
    requests = read_trace(trace)
    try:
        model = fetch_health(url, api_key).model
    except NotRatoon:
        model = "another server"
    stderr.print(f"{len(requests)} requests to {model} at {url}", markup=False)
    options = ReplayOptions(url=url, api_key=api_key, max_tokens=max_tokens, vary_billing=billing)
    report = replay(requests, options)
    stdout.print(_table(report))
    for result in report.errors:
        stderr.print(f"request {result.index}: {result.error}", style="red", markup=False)
    if json_file is not None:
        json_file.write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
    if report.errors:
        raise typer.Exit(1)


@app.command("compare")
@comparing
def compare_command(
    comparison: Comparison,
    trace: Annotated[Path, typer.Argument(help="JSON lines of recorded requests.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="Length of each reply.")] = MAX_TOKENS,
) -> None:
    """Replay a trace on two servers in turns, each started anew."""
    compare(comparison, [replay_match(trace.stem, read_trace(trace), max_tokens)])


@app.command("forks")
@comparing
def forks_command(
    comparison: Comparison,
    forks: Annotated[int, typer.Option(min=1, help="Forks side by side.")] = 3,
    scale: Scale = 1.0,
) -> None:
    """A parent's prompt, and forks of it that share all but their directive."""
    compare(comparison, [forks_match(Forks(forks, CLIENT.scaled(scale)))])


@app.command("fanout")
@comparing
def fanout_command(
    comparison: Comparison,
    siblings: Annotated[int, typer.Option(min=1, help="Sub-agents side by side.")] = 3,
    rounds: Annotated[int, typer.Option(min=0, help="Rounds of each sub-agent.")] = 4,
    long: Annotated[
        bool, typer.Option("--long", help="With prompts as long as a real client's; Ratoon alone.")
    ] = False,
    scale: Scale = 1.0,
) -> None:
    """A main agent that starts sub-agents side by side and goes on."""
    sizes = (LONG_CLIENT if long else CLIENT).scaled(scale)
    compare(comparison, [fanout_match(FanOut(siblings, rounds, sizes=sizes, is_long=long))])


@app.command("repo")
@comparing
def repo_command(comparison: Comparison, scale: Scale = 1.0) -> None:
    """A second session in a repository, with and without the client's billing line."""
    sizes = CLIENT.scaled(scale)
    repos = [SecondSession(has_billing, sizes) for has_billing in (True, False)]
    compare(comparison, [repo_match(repo) for repo in repos])


@app.command("restart")
@comparing
def restart_command(
    comparison: Comparison,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions that go on.")] = 1,
    scale: Scale = 1.0,
) -> None:
    """Sessions that go on after the server was stopped and started again."""
    compare(comparison, [restart_match(Restart(sessions, CLIENT.scaled(scale)))])


@app.command("decode")
@comparing
def decode_command(
    comparison: Comparison,
    sequences: Annotated[
        list[int] | None, typer.Option(min=1, help="Replies side by side; may be repeated.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=8, help="Length of each reply.")] = 128,
) -> None:
    """Tokens per second of replies side by side."""
    compare(comparison, [decode_match(Decode(tuple(sequences or (1, 2, 4, 8)), max_tokens))])


@app.command("fairness")
@comparing
def fairness_command(
    comparison: Comparison,
    streams: Annotated[int, typer.Option(min=1, help="Replies being written.")] = 3,
    words: Annotated[
        int, typer.Option(min=16, help="Length of the prompt that arrives.")
    ] = LONG_WORDS,
    max_tokens: Annotated[int, typer.Option(min=64, help="Longest reply.")] = 2048,
) -> None:
    """Gaps in replies that are being written while a long prompt arrives."""
    compare(comparison, [fairness_match(Fairness(streams, words, max_tokens))])


@app.command("all")
@comparing
def all_command(
    comparison: Comparison,
    trace: Annotated[
        list[Path] | None, typer.Option(help="A trace to replay, too; may be repeated.")
    ] = None,
    scale: Scale = 1.0,
) -> None:
    """Everything, with a verdict on each bar."""
    compare(comparison, all_matches(trace or (), scale))


@app.command("make-trace")
@making
def make_trace_command(
    shape: Shape,
    file: Annotated[Path, typer.Argument(help="Where to write the trace.")],
    scale: Annotated[
        float, typer.Option(min=0.01, help="Length of texts; 1: a real client's, cut to a quarter.")
    ] = 1.0,
) -> None:
    """Write a made-up trace of many agents for `replay` and `compare`."""
    records = make_trace(replace(shape, sizes=CLIENT.scaled(scale)))
    try:
        write(records, file)
    except OSError as error:
        raise ConfigError(f"can't write {file}: {error.strerror}") from None
    stderr.print(f"{len(records)} requests of {shape.agents} agents in {file}", markup=False)


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

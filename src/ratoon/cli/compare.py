"""Options that all comparing commands share, and how a comparison is run and shown."""

from __future__ import annotations

import inspect
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from ratoon.bench.pairs import Outcome, TrialFailed
from ratoon.bench.plot import can_plot, draw
from ratoon.bench.process import ServerFailed
from ratoon.bench.report import (
    FIGURE_HEADS,
    VERDICT_HEADS,
    Findings,
    Found,
    figure_rows,
    verdict_rows,
)
from ratoon.bench.shape import Shape
from ratoon.bench.suite import LLAMA_SERVER, N_CELLS, TOOL_TEMPLATE, Lineup, Match
from ratoon.bench.workloads import PROMPTED, REPLIED
from ratoon.cli.console import stderr, stdout
from ratoon.errors import ConfigError
from ratoon.weights import check_weights, embedded_weights

JSON_FILE = "bench.json"
SHAPE_HELP = {
    "agents": "Agents in all, main agents too.",
    "sessions": "Main agents, each with its sub-agents.",
    "repositories": "Repositories that the sessions are spread over.",
    "turns": "Rounds of tool calls of each agent.",
    "siblings": "Sub-agents started side by side.",
    "forks": "How many of them know their parent's conversation.",
    "depth": "Levels of sub-agents.",
    "side_calls": "Small calls beside each session.",
    "resumes": "How often each session is taken up again.",
    "seed": "Other seeds give other words.",
}


class Comparison(NamedTuple):
    """What to compare, and where the report goes."""

    lineup: Lineup
    out: Path | None


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "model": (
        Annotated[
            Path | None,
            typer.Option("--model", "-m", help="GGUF file; default: the embedded SmolLM2-135M."),
        ],
        None,
    ),
    "chat_template": (
        Annotated[
            Path | None,
            typer.Option(
                help="Jinja2 file for both sides; default: the model's own, or, with the embedded "
                "model, one that knows tools.",
                metavar="FILE",
                exists=True,
            ),
        ],
        None,
    ),
    "pairs": (Annotated[int, typer.Option(min=1, help="Trials of each side.")], 5),
    "against": (
        Annotated[
            str,
            typer.Option(help="'llama-server' (from the extra 'bench'), or a server's address."),
        ],
        LLAMA_SERVER,
    ),
    "best": (
        Annotated[
            bool, typer.Option("--best/--no-best", help="llama-server at its best settings.")
        ],
        True,
    ),
    "defaults": (
        Annotated[bool, typer.Option("--defaults/--no-defaults", help="llama-server as it comes.")],
        True,
    ),
    "default_pairs": (
        Annotated[
            int, typer.Option(min=1, help="Pairs in which the defaults take part, beside the best.")
        ],
        2,
    ),
    "n_cells": (
        Annotated[int, typer.Option(min=256, help="KV cells of either side, for all sequences.")],
        N_CELLS,
    ),
    "threads": (
        Annotated[int, typer.Option(min=0, help="CPU threads of either side; 0: one per core.")],
        0,
    ),
    "out": (
        Annotated[
            Path | None,
            typer.Option(
                help=f"Folder for {JSON_FILE} and the picture.", metavar="FOLDER", file_okay=False
            ),
        ],
        None,
    ),
}


def comparing(run: Callable[..., None]) -> Callable[..., None]:
    """A command that has the shared options besides ``run``'s own, and hands it a ``Comparison``
    first."""
    return _with_options(run, _OPTIONS, _comparison)


def making(run: Callable[..., None]) -> Callable[..., None]:
    """Likewise, with one option for each number of a ``Shape``."""
    options = {
        item.name: (Annotated[int, typer.Option(help=SHAPE_HELP[item.name])], item.default)
        for item in fields(Shape)
        if item.name in SHAPE_HELP
    }
    return _with_options(run, options, Shape)


def _with_options(
    run: Callable[..., None], options: Mapping[str, tuple[Any, Any]], make: Callable[..., Any]
) -> Callable[..., None]:
    def command(**given: Any) -> None:
        shared = {name: given.pop(name) for name in options}
        run(make(**shared), **given)

    own = list(inspect.signature(run, eval_str=True).parameters.values())[1:]
    parameters = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own] + [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.__doc__ = run.__doc__
    return command


def compare(comparison: Comparison, matches: Sequence[Match]) -> None:
    """Run all, show and store what is found; exit code 1 if a bar is missed."""
    if not any(map(comparison.lineup.can_run, matches)):
        raise ConfigError(f"{comparison.lineup.against} can't be restarted from here")
    found: list[Found] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ratoon-bench-") as name, _ended_by_sigterm():
        folder = Path(name)
        lineup = comparison.lineup.tuned(folder, _say)
        for match in filter(lineup.can_run, matches):
            try:
                outcome = lineup.run(match, folder, _say)
            except (TrialFailed, ServerFailed) as error:
                failed.append(f"{match.workload.name} could not be measured: {error}")
                continue
            stdout.print(_figures(outcome))
            _warn_of_other_work(outcome)
            found.append(Found(match, outcome))
            # stored after each: a long run that is interrupted has not been for nothing
            _store(comparison.out, Findings(lineup, found))
    findings = Findings(lineup, found)
    _show_verdicts(findings)
    for line in failed:
        stderr.print(line, style="red", markup=False, soft_wrap=True)
    if failed or not findings.all_met:
        raise typer.Exit(1)


def _comparison(*, out: Path | None, model: Path | None, **given: Any) -> Comparison:
    given = {"has_best": given.pop("best"), "has_defaults": given.pop("defaults"), **given}
    template = given.pop("chat_template") or (TOOL_TEMPLATE if model is None else None)
    weights = check_weights((model or embedded_weights()).resolve())
    lineup = Lineup(weights, chat_template=template and template.resolve(), **given)
    lineup.check()
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"can't write to {out}: {error.strerror}") from None
        if not can_plot():
            _say("there will be no picture: pip install 'ratoon[bench]'")
    return Comparison(lineup, out)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A service manager's signal ends the run as Ctrl-C does, and no server is left."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _warn_of_other_work(outcome: Outcome) -> None:
    """Equal requests may become other prompts, as where a template leaves tools out, or end
    early."""
    for peer in outcome.peers:
        for metric, most in ((PROMPTED, 0.1), (REPLIED, 0.05)):
            ratio = outcome.ratio_of_medians(peer, metric.name)
            if ratio is not None and abs(ratio - 1) > most:
                _say(
                    f"{outcome.workload.name}: for the same requests Ratoon had {ratio:.2f} times "
                    f"the {metric.label} of {peer}, so times can't be compared"
                )


def _say(text: str) -> None:
    stderr.print(text, markup=False, highlight=False, soft_wrap=True)


def _store(out: Path | None, findings: Findings) -> None:
    if out is None:
        return
    findings.write(out / JSON_FILE)
    if can_plot():
        draw(findings, out)


def _figures(outcome: Outcome) -> Table:
    for told in outcome.repeated:
        stderr.print(f"repeated: {told}", style="yellow", markup=False)
    table = Table(
        *FIGURE_HEADS,
        title=escape(f"{outcome.workload.name}: {outcome.workload.title}"),
        title_justify="left",
    )
    for row in figure_rows(outcome):
        table.add_row(*map(escape, row))
    return table


def _show_verdicts(findings: Findings) -> None:
    rows = list(verdict_rows(findings))
    if not rows:
        return
    table = Table(*VERDICT_HEADS, title="medians (ranges) of the pairs", title_justify="left")
    for is_met, row in rows:
        table.add_row(*map(escape, row), style="green" if is_met else "red")
    stdout.print(table)

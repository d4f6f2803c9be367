"""The ``ratoon`` command."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer

from ratoon.cli import bench, cache, claude, keys, serve
from ratoon.cli.console import stderr, stdout
from ratoon.errors import RatoonError

app = typer.Typer(
    help="Ratoon serves local models to coding agents and never computes a prompt prefix twice.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("claude", context_settings=claude.CONTEXT_SETTINGS)(claude.claude)
app.add_typer(bench.app, name="bench")
app.add_typer(cache.app, name="cache")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Run the command line; a fault of the user's is one line and exit code 2."""
    try:
        app()
    except RatoonError as error:
        stderr.print("[bold red]error:[/]", end=" ")
        stderr.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        stdout.print(f"ratoon {importlib.metadata.version('ratoon')}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass

"""``ratoon keys``: who may use a server, and how often."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ratoon.cli.console import stderr, stdout
from ratoon.keys import Role, add_key, read_keys, remove_key

app = typer.Typer(help="API keys, for serve --keys-file.", no_args_is_help=True)

File = Annotated[Path, typer.Argument(help="The file of keys; it holds only their digests.")]
Name = Annotated[str, typer.Argument(help="Whose key it is; domains belong to this name.")]


@app.command("add")
def add(
    file: File,
    name: Name,
    role: Annotated[Role, typer.Option(help="An admin may use /admin and /metrics, too.")] = (
        Role.USER
    ),
    per_minute: Annotated[int, typer.Option(min=0, help="Most requests in a minute; 0: any.")] = 0,
) -> None:
    """Make a key and print it: it can't be shown again."""
    secret = add_key(file, name, role, per_minute)
    stdout.print(secret, highlight=False, soft_wrap=True)
    stderr.print(f"a running server lets {name} in within a second", style="dim", markup=False)


@app.command("ls")
def ls(file: File) -> None:
    """List the keys by name."""
    table = Table("name", "role", "per minute", "since")
    for key in sorted(read_keys(file), key=lambda each: each.name):
        since = datetime.fromtimestamp(key.created_s, UTC).strftime("%Y-%m-%d")
        table.add_row(key.name, key.role.value, str(key.per_minute or "any"), since)
    stdout.print(table)


@app.command("rm")
def rm(file: File, name: Name) -> None:
    """Remove a key: it lets nobody in any more, within a second."""
    remove_key(file, name)

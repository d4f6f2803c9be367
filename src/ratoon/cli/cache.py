"""``ratoon cache``: look at the states kept on disk, check them, and move or remove them.

Works beside running servers: they see what changes as a hit or a miss.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ByteSize, TypeAdapter, ValidationError
from rich.table import Table

from ratoon.cli.console import stderr, stdout
from ratoon.config import Settings, load_settings
from ratoon.disk.archive import Report, export_states, import_states
from ratoon.disk.files import StateFiles
from ratoon.disk.folder import Fault, StateFolder, faults
from ratoon.disk.format import BadSnapshot
from ratoon.disk.index import Row
from ratoon.disk.records import Records
from ratoon.errors import ConfigError

app = typer.Typer(help="The states kept on disk.", no_args_is_help=True)

CacheDir = Annotated[
    str | None,
    typer.Option("--cache-dir", help="The folder; default: as set for the server.", metavar="DIR"),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]
Only = Annotated[
    str | None,
    typer.Option(
        "--only",
        metavar="TEXT",
        help="Only states whose label contains this, or whose key or fingerprint begins with it.",
    ),
]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHORT_KEY = 12


@app.command("ls")
def ls(cache_dir: CacheDir = None, only: Only = None, json_: AsJson = False) -> None:
    """List the states, last used first."""
    with _folder(_settings(cache_dir)) as folder:
        rows = _pick(folder, only)
    if json_:
        _print_json({"states": [_view(row) for row in rows]})
        return
    table = Table(show_footer=True)
    table.add_column("key", f"{len(rows)} states")
    table.add_column("made for")
    table.add_column("kind")
    table.add_column("tokens", f"{sum(row.n_tokens for row in rows):,}", justify="right")
    table.add_column("size", _size(sum(row.n_bytes for row in rows)), justify="right")
    table.add_column("hits", f"{sum(row.n_hits for row in rows):,}", justify="right")
    table.add_column("used", justify="right")
    for row in rows:
        facts = (f"{row.n_tokens:,}", _size(row.n_bytes), f"{row.n_hits:,}", _ago(row.used_s))
        kind = row.kind.name.lower()
        table.add_row(row.key[:_SHORT_KEY], row.label or row.fingerprint[:8], kind, *facts)
    stdout.print(table, markup=False)


@app.command("stats")
def stats(cache_dir: CacheDir = None, json_: AsJson = False) -> None:
    """Sums per model and setting, and the budget."""
    settings = _settings(cache_dir)
    with _folder(settings) as folder:
        rows = list(folder.rows.values())
    with _records(settings) as records:
        n_replies, n_reply_bytes = records.total()
    groups = [_group(rows, name) for name in sorted({row.fingerprint for row in rows})]
    total: dict[str, Any] = {
        "folder": str(settings.states_dir),
        "n_states": len(rows),
        "n_bytes": sum(row.n_bytes for row in rows),
        "max_bytes": int(settings.disk_bytes),
        "n_replies": n_replies,
        "n_reply_bytes": n_reply_bytes,
    }
    if json_:
        _print_json({**total, "fingerprints": groups})
        return
    table = Table("fingerprint", "made for")
    for title in ("states", "tokens", "size", "hits"):
        table.add_column(title, justify="right")
    for group in groups:
        counts = (f"{group['n_states']:,}", f"{group['n_tokens']:,}", _size(group["n_bytes"]))
        table.add_row(group["fingerprint"][:8], group["label"], *counts, f"{group['n_hits']:,}")
    stdout.print(table, markup=False)
    used, budget = _size(total["n_bytes"]), _size(settings.disk_bytes)
    _say(f"{used} of {budget} used in {settings.states_dir}")
    _say(f"{n_replies:,} replies are kept too, {_size(n_reply_bytes)}")


@app.command("verify")
def verify(
    cache_dir: CacheDir = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave damaged files where they are.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Read every byte of every state and reply; remove what is damaged. Exit code 1 if anything
    was."""
    settings = _settings(cache_dir)
    n_states, bad_states = _check_states(settings, keep)
    n_replies, bad_replies = _check_replies(settings, keep)
    bad = [*bad_states, *bad_replies]
    if json_:
        views = [{"key": fault.key, "reason": fault.reason} for fault in bad]
        _print_json({"n_sound": n_states, "n_sound_replies": n_replies, "bad": views})
    else:
        _tell_faults(bad)
        _say(f"{n_states} states are sound, {len(bad_states)} damaged")
        _say(f"{n_replies} replies are sound, {len(bad_replies)} damaged")
    if bad:
        raise typer.Exit(1)


@app.command("prune")
def prune(
    cache_dir: CacheDir = None,
    only: Only = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Not used for so long, e.g. 12h or 7d.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Evict what is worth least until so much is left."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Remove every state and reply.")] = False,
) -> None:
    """Remove states: by age, down to a size, of one model, or all; by age and with all, replies."""
    if not (only or older_than or to or all_):
        raise ConfigError("say what to remove: --only, --older-than, --to or --all")
    age_s = _parse_age(older_than) if older_than else 0.0
    max_bytes = _parse_size(to) if to else None
    settings = _settings(cache_dir)
    with _folder(settings) as folder:
        n_before, n_bytes = len(folder.rows), folder.n_bytes
        if only or older_than or all_:
            for row in _pick(folder, only):
                if time.time() - row.used_s >= age_s:
                    folder.remove(row.key)
        if max_bytes is not None and folder.rows:
            folder.make_room(0, max_bytes)
        n_removed, n_freed = n_before - len(folder.rows), n_bytes - folder.n_bytes
    _say(f"removed {n_removed} of {n_before} states, {_size(n_freed)}")
    if (older_than or all_) and not only:
        with _records(settings) as records:
            _say(f"removed {records.prune(time.time() - age_s)} replies")


@app.command("export")
def export_(
    file: Annotated[Path, typer.Argument(help="The tar file to write.")],
    cache_dir: CacheDir = None,
    only: Only = None,
) -> None:
    """Pack states into one file, for a machine with the same model, build and settings."""
    settings = _settings(cache_dir)
    with _folder(settings) as folder, _told(settings, file):
        keys = [row.key for row in _pick(folder, only)]
        report = export_states(folder.files, keys, file)
    _tell_faults(report.faults)
    _say(f"packed {len(report.done)} states into {file}")
    if report.faults:
        raise typer.Exit(1)


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="The tar file to read.")], cache_dir: CacheDir = None
) -> None:
    """Unpack an exported file; each state is checked first."""
    settings = _settings(cache_dir)
    if not file.is_file():
        raise ConfigError(f"there is no file {file}")
    try:
        with _folder(settings, create=True) as folder, _told(settings, file):
            report = import_states(folder, file, settings.disk_bytes)
    except BadSnapshot as error:
        raise ConfigError(str(error)) from None
    _tell_import(report)
    if report.faults or report.no_room:
        raise typer.Exit(1)


def _settings(cache_dir: str | None) -> Settings:
    return load_settings({} if cache_dir is None else {"cache_dir": cache_dir})


@contextmanager
def _folder(settings: Settings, *, create: bool = False) -> Iterator[StateFolder]:
    """The open folder. One that does not exist is empty, and not made just by looking."""
    folder = StateFolder(settings.states_dir)
    with _told(settings):
        if create or settings.states_dir.exists():
            folder.open()
        try:
            yield folder
        finally:
            folder.close()


@contextmanager
def _records(settings: Settings) -> Iterator[Records]:
    """The kept replies; a file that is not there is not made."""
    records = Records(settings.states_dir)
    try:
        yield records
    finally:
        records.close()


@contextmanager
def _told(settings: Settings, file: Path | None = None) -> Iterator[None]:
    """What the disk refuses is the user's to know."""
    try:
        yield
    except OSError as error:
        where = error.filename or file or settings.states_dir
        raise ConfigError(f"can't use {where}: {error.strerror}") from None


def _check_states(settings: Settings, keep: bool) -> tuple[int, list[Fault]]:
    """How many are sound, and what is wrong with the others; these go unless to ``keep``."""
    if not settings.states_dir.exists():
        return 0, []
    with _told(settings):
        found = list(faults(StateFiles(settings.states_dir)))
    bad = [each for each in found if isinstance(each, Fault)]
    if bad and not keep:
        with _folder(settings) as folder:
            for fault in bad:
                folder.discard(fault)
    return len(found) - len(bad), bad


def _check_replies(settings: Settings, keep: bool) -> tuple[int, list[Fault]]:
    with _records(settings) as records:
        n_sound, bad = records.check()
        if bad and not keep:
            records.repair()
    return n_sound, bad


def _pick(folder: StateFolder, only: str | None) -> list[Row]:
    def is_meant(row: Row) -> bool:
        ids = (row.key, row.fingerprint)
        return only is None or only in row.label or any(name.startswith(only) for name in ids)

    rows = filter(is_meant, folder.rows.values())
    return sorted(rows, key=lambda row: row.used_s, reverse=True)


def _view(row: Row) -> dict[str, Any]:
    return {
        "key": row.key,
        "fingerprint": row.fingerprint,
        "label": row.label,
        "kind": row.kind.name.lower(),
        "n_tokens": row.n_tokens,
        "n_bytes": row.n_bytes,
        "n_hits": row.n_hits,
        "used_s": row.used_s,
    }


def _group(rows: Iterable[Row], fingerprint: str) -> dict[str, Any]:
    mine = [row for row in rows if row.fingerprint == fingerprint]
    return {
        "fingerprint": fingerprint,
        "label": mine[0].label,
        "n_states": len(mine),
        "n_tokens": sum(row.n_tokens for row in mine),
        "n_bytes": sum(row.n_bytes for row in mine),
        "n_hits": sum(row.n_hits for row in mine),
    }


def _tell_faults(bad: Iterable[Fault]) -> None:
    for fault in bad:
        stderr.print(f"{fault.key}: {fault.reason}", markup=False, highlight=False, soft_wrap=True)


def _tell_import(report: Report) -> None:
    _tell_faults(report.faults)
    parts = [f"imported {len(report.done)} states"]
    if report.present:
        parts.append(f"{len(report.present)} were there already")
    if report.no_room:
        parts.append(f"{len(report.no_room)} have no room; raise disk_bytes or prune")
    _say("; ".join(parts))


def _say(text: str) -> None:
    stdout.print(text, markup=False, highlight=False, soft_wrap=True)


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2))


def _size(n_bytes: int) -> str:
    return ByteSize(n_bytes).human_readable()


def _ago(used_s: float) -> str:
    age_s = max(0, int(time.time() - used_s))
    unit = next((unit for unit in "dhm" if age_s >= _SECONDS[unit]), "s")
    return f"{age_s // _SECONDS[unit]}{unit} ago"


def _parse_age(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smhd])", text)
    if match is None:
        raise ConfigError(f"--older-than {text!r} is no age; write 30m, 12h or 7d")
    return float(int(match[1]) * _SECONDS[match[2]])


def _parse_size(text: str) -> int:
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise ConfigError(f"--to {text!r} is no size; write 500MB or 10GiB") from None

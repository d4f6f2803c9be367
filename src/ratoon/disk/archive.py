"""Snapshots in one tar file, to carry them to another machine with the same model and build."""

from __future__ import annotations

import contextlib
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from ratoon.disk.files import STATE_NAME, StateFiles
from ratoon.disk.folder import Fault, StateFolder
from ratoon.disk.format import BadSnapshot

_READ_BYTES = 4 << 20


@dataclass(slots=True)
class Report:
    """What happened to the snapshots of an archive."""

    done: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)  # were there already
    no_room: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def export_states(files: StateFiles, keys: Iterable[str], target: Path) -> Report:
    """Pack snapshots, each checked, into ``target``, which appears when whole. Raises OSError."""
    report = Report()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with (
            open(part, "xb", opener=_private) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for key in keys:
                fault = _pack(archive, files, key)
                if fault is None:
                    report.done.append(key)
                else:
                    report.faults.append(fault)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return report


def _private(path: str, flags: int) -> int:
    """For this user only: snapshots hold prompts."""
    return os.open(path, flags, 0o600)


def _pack(archive: tarfile.TarFile, files: StateFiles, key: str) -> Fault | None:
    path = files.path(key)
    try:
        head, view = files.load(key, None)
    except FileNotFoundError:
        return Fault(key, "it was evicted meanwhile")
    except BadSnapshot as error:
        return Fault(key, str(error))
    with view, path.open("rb") as stream:  # the view keeps it from being evicted
        member = tarfile.TarInfo(path.name)
        member.size, member.mode, member.mtime = head.n_bytes, 0o600, int(path.stat().st_mtime)
        archive.addfile(member, stream)
    return None


def import_states(folder: StateFolder, source: Path, max_bytes: int) -> Report:
    """Unpack what ``export_states`` packed. Nothing in it is trusted; nothing is evicted for it.

    Raises OSError, and BadSnapshot if ``source`` is no archive.
    """
    report = Report()
    try:
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                _unpack(archive, member, folder, max_bytes, report)
    except tarfile.TarError as error:
        raise BadSnapshot(f"{source} is no whole archive: {error}") from None
    return report


def _unpack(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    folder: StateFolder,
    max_bytes: int,
    report: Report,
) -> None:
    match = STATE_NAME.fullmatch(member.name)
    stream = archive.extractfile(member) if match and member.isreg() else None
    if match is None or stream is None:
        report.faults.append(Fault(member.name, "it is no snapshot"))
        return
    key = match[1]
    if key in folder.rows:
        report.present.append(key)
        return
    if folder.missing(member.size, max_bytes) > 0:
        report.no_room.append(key)
        return
    with contextlib.closing(stream):
        try:
            is_done = folder.adopt(key, _chunks(stream))
        except BadSnapshot as error:
            report.faults.append(Fault(key, str(error)))
            return
    (report.done if is_done else report.present).append(key)


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_READ_BYTES):
        yield chunk

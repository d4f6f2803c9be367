"""Export and import: what is packed arrives, and nothing in an archive is trusted."""

from __future__ import annotations

import io
import stat
import tarfile
from pathlib import Path

import pytest

from ratoon.disk.archive import export_states, import_states
from ratoon.disk.files import StateFiles
from ratoon.disk.folder import StateFolder
from ratoon.disk.format import BadSnapshot
from tests.unit.disk.states import BUDGET, keep, loaded, make_state, opened

STATES = [make_state(range(n), 5000) for n in (10, 20, 30)]


@pytest.fixture
def source(tmp_path: Path) -> StateFiles:
    with opened(tmp_path / "source") as store:
        keep(store, *STATES)
    return StateFiles(tmp_path / "source")


def opened_folder(path: Path) -> StateFolder:
    folder = StateFolder(path)
    folder.open()
    return folder


def test_states_travel(source: StateFiles, tmp_path: Path) -> None:
    keys = sorted(source.sizes())
    packed = export_states(source, keys, tmp_path / "a.tar")
    assert packed.done == keys
    assert stat.S_IMODE((tmp_path / "a.tar").stat().st_mode) == 0o600
    folder = opened_folder(tmp_path / "target")
    assert import_states(folder, tmp_path / "a.tar", BUDGET).done == keys
    assert import_states(folder, tmp_path / "a.tar", BUDGET).present == keys
    folder.close()
    with opened(tmp_path / "target") as store:
        assert {entry.key for entry in store.entries()} == set(keys)
        for state in STATES:
            assert loaded(store, store.key(state.tokens)) == state.data


def test_what_is_damaged_or_gone_is_not_packed(source: StateFiles, tmp_path: Path) -> None:
    torn, gone, sound = sorted(source.sizes())
    path = source.path(torn)
    path.write_bytes(path.read_bytes()[:-1])
    source.remove(gone)
    report = export_states(source, [torn, gone, sound], tmp_path / "a.tar")
    assert report.done == [sound]
    assert [fault.key for fault in report.faults] == [torn, gone]


def test_an_archive_appears_when_whole(source: StateFiles, tmp_path: Path) -> None:
    (tmp_path / "a.tar").mkdir()
    with pytest.raises(OSError, match="directory"):
        export_states(source, source.sizes(), tmp_path / "a.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "source"]


def test_nothing_is_evicted_for_an_import(source: StateFiles, tmp_path: Path) -> None:
    export_states(source, sorted(source.sizes()), tmp_path / "a.tar")
    folder = opened_folder(tmp_path / "target")
    report = import_states(folder, tmp_path / "a.tar", 12_000)
    assert (len(report.done), len(report.no_room)) == (2, 1)
    assert set(folder.rows) == set(report.done)
    assert import_states(folder, tmp_path / "a.tar", BUDGET).done == report.no_room


def member(name: str, data: bytes = b"", **options: bytes) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.type = options.get("type", tarfile.REGTYPE)
    info.linkname = "/etc/passwd" if info.type != tarfile.REGTYPE else ""
    return info, data


def test_nothing_in_an_archive_is_trusted(source: StateFiles, tmp_path: Path) -> None:
    key, other, _ = sorted(source.sizes())
    raw = source.path(key).read_bytes()
    flipped = bytes([*raw[:-9], raw[-9] ^ 1, *raw[-8:]])
    members = [
        member(f"../{key}.state", raw),
        member(f"/tmp/{key}.state", raw),
        member("notes.txt", b"hello"),
        member(f"{key}.state", type=tarfile.SYMTYPE),
        member(f"{key}.state", type=tarfile.LNKTYPE),
        member(f"{other}.state", raw),
        member(f"{key}.state", flipped),
        member(f"{key}.state", raw[:-1]),
        member(f"{key}.state", raw),
    ]
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    folder = opened_folder(tmp_path / "target")
    report = import_states(folder, tmp_path / "a.tar", BUDGET)
    assert report.done == [key]
    assert len(report.faults) == len(members) - 1
    names = {path.name for path in (tmp_path / "target").iterdir() if path.suffix != ".sqlite3"}
    assert {name for name in names if "index" not in name} == {f"{key}.state"}
    assert (tmp_path / "target" / f"{key}.state").read_bytes() == raw


def test_a_torn_archive_is_said_and_what_was_whole_is_kept(
    source: StateFiles, tmp_path: Path
) -> None:
    file = tmp_path / "a.tar"
    export_states(source, sorted(source.sizes()), file)
    whole = file.read_bytes()
    for length in (len(whole) // 2, 700):
        file.write_bytes(whole[:length])
        folder = opened_folder(tmp_path / str(length))
        with pytest.raises(BadSnapshot, match="no whole archive"):
            import_states(folder, file, BUDGET)
        assert len(folder.rows) == length // 5632
        assert list((tmp_path / str(length)).glob(".*.part")) == []
    file.write_bytes(b"not an archive")
    with pytest.raises(BadSnapshot, match="no whole archive"):
        import_states(folder, file, BUDGET)

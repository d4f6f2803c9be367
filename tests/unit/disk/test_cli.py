"""``ratoon cache``, as a user calls it."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ratoon.cli
from ratoon.disk.files import StateFiles
from ratoon.disk.records import FILE, Changes, Records
from tests.unit.disk.states import OTHER, keep, make_state, opened

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three states of one model and one of another, where the settings say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("RATOON_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "ratoon" / "states"
    with opened(folder) as store:
        keep(store, *(make_state([n] * 10 * n, 5000) for n in (1, 2, 3)))
    with opened(folder, OTHER) as store:
        keep(store, make_state([1] * 7, 5000))
    return folder


@pytest.fixture
def replies(folder: Path) -> Iterator[Records]:
    """Three replies of two owners, the last used an hour ago or more."""
    records = Records(folder)
    used_s = time.time() - 3600
    for n, owner in enumerate(("one", "one", "two")):
        changes = Changes({f"{n}": b"x" * 1000}, {f"{n}": used_s - n * 86_400})
        assert records.apply(owner, changes, 10_000)
    yield records
    records.close()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path) -> Run:
    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ratoon", "cache", *arguments])
        with pytest.raises(SystemExit) as caught:
            ratoon.cli.main()
        said = capsys.readouterr()
        return int(caught.value.code or 0), said.out + said.err

    return run


def listed(run: Run, *arguments: str) -> list[str]:
    code, said = run("ls", "--json", *arguments)
    assert code == 0
    return [state["key"] for state in json.loads(said)["states"]]


def test_help_tells_every_command(run: Run) -> None:
    code, said = run("--help")
    assert code == 0
    for name in ("ls", "stats", "verify", "prune", "export", "import"):
        assert f" {name} " in said
        assert run(name, "--help")[0] == 0


def test_ls(run: Run, folder: Path) -> None:
    code, said = run("ls")
    assert code == 0
    assert "4 states" in said
    assert said.count("tiny f16") == 3
    assert set(listed(run)) == set(StateFiles(folder).sizes())
    assert len(listed(run, "--only", "q8_0")) == 1
    assert listed(run, "--only", OTHER.digest[:6]) == listed(run, "--only", "q8_0")
    assert listed(run, "--only", "nothing") == []
    state = json.loads(run("ls", "--json", "--only", "q8_0")[1])["states"][0]
    assert (state["n_tokens"], state["kind"], state["label"]) == (7, "whole", "tiny q8_0")


def test_stats(run: Run, folder: Path) -> None:
    code, said = run("stats")
    assert code == 0
    assert "20.0GiB used" in said
    sums = json.loads(run("stats", "--json")[1])
    assert sums["n_bytes"] == sum(StateFiles(folder).sizes().values())
    assert sorted(group["n_states"] for group in sums["fingerprints"]) == [1, 3]
    assert sorted(group["n_tokens"] for group in sums["fingerprints"]) == [7, 60]


def test_verify_tells_removes_and_fails(run: Run, folder: Path) -> None:
    code, said = run("verify")
    assert (code, "4 states are sound, 0 damaged" in said) == (0, True)
    bad = sorted(folder.glob("*.state"))[0]
    bad.write_bytes(bad.read_bytes()[:-1])
    torn = sorted(folder.glob("*.state"))[1]
    torn.write_bytes(b"")
    code, said = run("verify", "--keep")
    assert (code, "2 states are sound, 2 damaged" in said) == (1, True)
    assert bad.exists()
    report = run("verify", "--json")
    assert report[0] == 1
    assert bad.stem in report[1]
    assert not bad.exists()
    assert run("verify")[0] == 0


def test_prune(run: Run, folder: Path) -> None:
    code, said = run("prune")
    assert (code, "--older-than" in said) == (2, True)
    assert "removed 0 of 4" in run("prune", "--older-than", "1h")[1]
    assert "removed 1 of 4" in run("prune", "--only", "q8_0")[1]
    assert "removed 1 of 3" in run("prune", "--to", "12kB")[1]
    old = time.time() - 90_000
    for index in folder.glob("index*"):
        index.unlink()  # without it, a file's own time counts
    os.utime(next(folder.glob("*.state")), (old, old))
    assert "removed 1 of 2" in run("prune", "--older-than", "1d")[1]
    assert "removed 1 of 1" in run("prune", "--all")[1]
    assert list(folder.glob("*.state")) == []
    assert "removed 0 of 0" in run("prune", "--to", "0")[1]


def test_replies_are_counted_checked_and_pruned(run: Run, folder: Path, replies: Records) -> None:
    assert "3 replies are kept too, 2.9KiB" in run("stats")[1]
    sums = json.loads(run("stats", "--json")[1])
    assert (sums["n_replies"], sums["n_reply_bytes"]) == (3, 3000)
    code, said = run("verify")
    assert (code, "3 replies are sound, 0 damaged" in said) == (0, True)
    with sqlite3.connect(folder / FILE) as db:
        db.execute("UPDATE contents SET data = x'00' WHERE id = 2")
    db.close()
    for _ in range(2):
        code, said = run("verify", "--keep")
        assert (code, "2 replies are sound, 1 damaged" in said) == (1, True)
    found = json.loads(run("verify", "--json")[1])
    assert found["n_sound_replies"] == 2
    assert found["bad"] == [{"key": "record 2", "reason": "its checksum is wrong"}]
    assert run("verify")[0] == 0
    run("prune", "--only", "f16")
    run("prune", "--to", "0")
    assert replies.total() == (2, 2000), "these speak of states"
    assert "removed 1 replies" in run("prune", "--older-than", "1d")[1]
    assert "removed 1 replies" in run("prune", "--all")[1]
    assert replies.total() == (0, 0)


def test_a_damaged_file_of_replies(run: Run, folder: Path, replies: Records) -> None:
    replies.close()
    (folder / FILE).write_bytes(b"noise" * 1000)
    for flags in (("--keep",), ()):
        code, said = run("verify", *flags)
        assert (code, "not a database" in said, "0 replies are sound, 1" in said) == (1, True, True)
    assert run("verify")[0] == 0
    assert "0 replies" in run("stats")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prune", "--older-than", "soon"), "'soon' is no age"),
        (("prune", "--to", "much"), "'much' is no size"),
        (("import", "nowhere.tar"), "no file nowhere.tar"),
        (("ls", "--cache-dir", "/dev/null"), "can't use /dev/null"),
        (("verify", "--cache-dir", "/dev/null"), "can't use /dev/null"),
        (("import", "/proc/self/exe"), "no file"),
        (("export", "/dev/null/x.tar"), "can't use"),
    ],
)
def test_a_fault_of_the_users_is_one_line(
    run: Run, arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    if arguments == ("import", "/proc/self/exe"):
        (tmp_path / "x.tar").write_bytes(b"no archive")
        arguments, words = ("import", "x.tar"), "no whole archive"
    code, said = run(*arguments)
    assert code == 2
    assert words in said
    assert said.count("\n") == 1


def test_a_folder_that_is_not_there_is_empty_and_stays_away(run: Run, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    for command in ("ls", "stats", "verify"):
        assert run(command, "--cache-dir", elsewhere)[0] == 0
    assert run("prune", "--all", "--cache-dir", elsewhere)[0] == 0
    assert not Path(elsewhere).exists()


def test_export_and_import(run: Run, tmp_path: Path) -> None:
    assert "packed 3 states" in run("export", "x.tar", "--only", "f16")[1]
    elsewhere = str(tmp_path / "elsewhere")
    assert "imported 3 states" in run("import", "x.tar", "--cache-dir", elsewhere)[1]
    assert "3 were there already" in run("import", "x.tar", "--cache-dir", elsewhere)[1]
    assert len(listed(run, "--cache-dir", elsewhere)) == 3
    assert set(listed(run, "--cache-dir", elsewhere)) < set(listed(run))


def test_an_import_beyond_the_budget_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("export", "x.tar")
    monkeypatch.setenv("RATOON_DISK_BYTES", "12kB")
    code, said = run("import", "x.tar", "--cache-dir", str(tmp_path / "small"))
    assert code == 1
    assert "2 have no room" in said

"""The file of API keys."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ratoon.errors import ConfigError
from ratoon.keys import Key, KeyRing, Role, add_key, digest_of, read_keys, remove_key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "keys.json"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_is_shown_once_and_kept_as_a_digest(file: Path) -> None:
    secret = add_key(file, "team-a", Role.USER, 60)
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (key,) = read_keys(file)
    assert (key.name, key.role, key.per_minute) == ("team-a", Role.USER, 60)
    assert KeyRing(file=file).find(secret.encode()) == key
    assert KeyRing(file=file).find(secret.encode()[:-1]) is None
    assert KeyRing(file=file).find(key.digest.encode()) is None


def test_keys_come_and_go_while_a_server_runs(file: Path) -> None:
    first, clock = add_key(file, "one", Role.ADMIN, 0), Clock()
    ring = KeyRing(file=file, clock=clock)
    second = add_key(file, "two", Role.USER, 0)
    assert ring.find(second.encode()) is None
    clock.now = 2.0
    assert ring.find(second.encode()) is not None
    remove_key(file, "one")
    clock.now = 4.0
    assert ring.find(first.encode()) is None
    file.write_text("{")
    clock.now = 6.0
    assert ring.find(second.encode()) is not None


def test_without_keys_anybody_may_come_in(file: Path) -> None:
    assert KeyRing().is_open
    assert KeyRing(inner=Key("_inner", digest_of(b"x"))).is_open
    assert not KeyRing([Key("", digest_of(b"x"))]).is_open
    remove_key(file, add_and_name(file))
    assert not KeyRing(file=file).is_open  # a file without keys lets nobody in


def add_and_name(file: Path) -> str:
    add_key(file, "only", Role.USER, 0)
    return "only"


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ä", "x" * 65])
def test_a_name_is_checked(file: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        add_key(file, name, Role.USER, 0)


def test_names_differ_and_what_is_not_there_can_not_be_removed(file: Path) -> None:
    add_key(file, "one", Role.USER, 0)
    with pytest.raises(ConfigError, match="already"):
        add_key(file, "one", Role.USER, 0)
    with pytest.raises(ConfigError, match="no key named two"):
        remove_key(file, "two")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        '{"version": 2, "keys": []}',
        json.dumps({"version": 1, "keys": [{"name": "x"}]}),
        json.dumps(
            {
                "version": 1,
                "keys": [
                    {"name": "x", "digest": "zz", "role": "user", "per_minute": 0, "created_s": 0}
                ],
            }
        ),
    ],
)
def test_another_file_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "keys.json"
    file.write_text(value)
    with pytest.raises(ConfigError, match="no file of keys"):
        read_keys(file)
    with pytest.raises(ConfigError):
        KeyRing(file=file)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't read the keys"):
        KeyRing(file=tmp_path / "keys.json")

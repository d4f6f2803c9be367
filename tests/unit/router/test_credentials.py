"""Whose key is used, and what of it can be seen."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ratoon.errors import InvalidRequest, NotFound
from ratoon.router.box import KEY_FILE, KeyBox
from ratoon.router.credentials import Access, Credentials, Wish, mask
from ratoon.router.hosts import Hosts
from tests.unit.router.shelf import Shelf

STORED = Access("openai", "sk-stored-0123456789", "m", "https://api.openai.com/v1", {"x": "y"})


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def box(tmp_path: Path) -> KeyBox:
    return KeyBox.open(tmp_path)


def credentials(
    shelf: Shelf | None = None, box: KeyBox | None = None, **more: Access
) -> Credentials:
    return Credentials(Hosts(), more.get("default"), box, shelf)


def test_keys_lie_locked_and_are_read_back(shelf: Shelf, box: KeyBox, tmp_path: Path) -> None:
    credentials(shelf, box).set("t", "shop", STORED)
    assert list(shelf.data) == ["t/shop"]
    assert b"sk-stored" not in shelf.data["t/shop"]
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    again = credentials(shelf, KeyBox.open(tmp_path))
    assert again.of("t") == {"shop": STORED}
    assert again.of("u") == {}


def test_what_another_key_locked_is_removed(shelf: Shelf, box: KeyBox, tmp_path: Path) -> None:
    credentials(shelf, box).set("", "shop", STORED)
    other = credentials(shelf, KeyBox.open(tmp_path / "other"))
    assert other.of("") == {}
    assert shelf.data == {}


def test_without_a_box_nothing_is_written(shelf: Shelf) -> None:
    own = credentials(shelf)
    own.set("", "shop", STORED)
    assert shelf.data == {}
    assert own.resolve("", "shop", Wish()) == STORED


def test_the_nearest_access_counts() -> None:
    default = Access("claude", "sk-of-the-server")
    own = credentials(default=default)
    assert own.resolve("t", "shop", Wish()) == default
    for_all = Access("claude", "sk-of-an-admin")
    own.set("boss", "_default", for_all)
    assert own.resolve("t", "shop", Wish()) == for_all
    assert own.of("boss") == {"_default": for_all}
    own.set("t", "shop", STORED)
    assert own.resolve("t", "shop", Wish()) == STORED
    asked = own.resolve("t", "shop", Wish(provider="openai", api_key="sk-mine", model="x"))
    assert (asked.api_key, asked.model, asked.base_url, asked.headers) == ("sk-mine", "x", None, {})
    own.remove("t", "shop")
    assert own.resolve("t", "shop", Wish()) == for_all
    with pytest.raises(NotFound):
        own.remove("t", "shop")


def test_a_stored_key_stays_with_its_address() -> None:
    own = credentials()
    own.set("", "shop", STORED)
    same = own.resolve("", "shop", Wish(base_url="https://api.openai.com/v1/", model="other"))
    assert (same.api_key, same.model) == (STORED.api_key, "other")
    headers = own.resolve("", "shop", Wish(headers={"x": "mine", "z": "1"})).headers
    assert headers == {"x": "y", "z": "1"}
    for wish in (Wish(base_url="https://api.anthropic.com"), Wish(provider="claude")):
        with pytest.raises(InvalidRequest):
            own.resolve("", "shop", wish)


def test_without_anything_the_local_model_answers() -> None:
    assert credentials().resolve("", "shop", Wish(system_prompt="Be kind.")) == Access(
        "local", system_prompt="Be kind."
    )
    for wish in (Wish(provider="openai"), Wish(base_url="https://api.openai.com/v1")):
        with pytest.raises(InvalidRequest, match="llm_api_key"):
            credentials().resolve("", "shop", wish)


@pytest.mark.parametrize(
    ("key", "shown"),
    [("", None), ("short", "***"), ("x" * 15, "***"), ("sk-0123456789abcdef", "...cdef")],
)
def test_a_key_is_masked(key: str, shown: str | None) -> None:
    assert mask(key) == shown


def test_no_secret_shows() -> None:
    shown = f"{STORED} {STORED.masked()} {Wish(api_key='sk-w', headers={'a': 'sk-h'})}"
    assert "sk-" not in shown
    assert "'y'" not in shown


def test_a_damaged_key_file_is_told(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"x")
    with pytest.raises(ValueError, match="key"):
        KeyBox.open(tmp_path)

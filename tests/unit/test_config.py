"""Settings: precedence, checks, and errors that name the setting and its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratoon.config import DEFAULT_URL, Settings, env_name, is_loopback, load_settings
from ratoon.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings file in the working folder, no variables of the caller's."""
    monkeypatch.chdir(tmp_path)
    for name in ("config", *Settings.model_fields):
        monkeypatch.delenv(env_name(name), raising=False)


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load_settings({}).port == 8788
    (tmp_path / "ratoon.toml").write_text("port = 1\nthreads = 3\n")
    assert load_settings({}).port == 1
    monkeypatch.setenv("RATOON_PORT", "2")
    assert load_settings({}).port == 2
    assert load_settings({"port": "4"}).port == 4
    assert load_settings({}).threads == 3


def test_a_named_file_is_read_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ratoon.toml").write_text("port = 1\n")
    (tmp_path / "other.toml").write_text("port = 2\n")
    (tmp_path / "third.toml").write_text("port = 3\n")
    monkeypatch.setenv("RATOON_CONFIG", "other.toml")
    assert load_settings({}).port == 2
    assert load_settings({}, Path("third.toml")).port == 3


def test_an_empty_variable_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATOON_PORT", "")
    assert load_settings({}).port == 8788


def test_sizes_take_units() -> None:
    assert load_settings({"host_bytes": "2GiB"}).host_bytes == 2 << 30


def test_states_lie_in_the_users_cache_or_where_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert load_settings({}).states_dir == Path("/home/someone/.cache/ratoon/states")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert load_settings({}).states_dir == Path("/home/someone/.cache/ratoon/states")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert load_settings({}).states_dir == tmp_path / "ratoon" / "states"
    assert load_settings({"cache_dir": "~/states"}).states_dir == Path("/home/someone/states")
    assert load_settings({"disk_bytes": "0"}).disk_bytes == 0


PATHS = [name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)]


@pytest.mark.parametrize("source", ["file", "environment", "flag"])
@pytest.mark.parametrize("name", PATHS)
def test_a_path_may_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    value = "x=~/a/b, y=~/a/b" if name == "preload" else "~/a/b"
    match source:
        case "file":
            (tmp_path / "ratoon.toml").write_text(f'{name} = "{value}"\n')
        case "environment":
            monkeypatch.setenv(env_name(name), value)
    found = getattr(load_settings({name: value} if source == "flag" else {}), name)
    there = Path("/home/someone/a/b")
    assert found == ({"x": there, "y": there} if name == "preload" else there)


def test_a_table_of_paths_may_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    (tmp_path / "ratoon.toml").write_text('[preload]\nx = "~/a"\ny = "b~"\n')
    assert load_settings({}).preload == {"x": Path("/home/someone/a"), "y": Path("b~")}


def test_the_settings_file_may_be_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.toml").write_text("port = 5\n")
    assert load_settings({}, Path("~/own.toml")).port == 5
    monkeypatch.setenv("RATOON_CONFIG", "~/own.toml")
    assert load_settings({}).port == 5
    with pytest.raises(ConfigError, match=r"~no_such_user_here/x: there is no such user"):
        load_settings({}, Path("~no_such_user_here/x"))


def test_all_paths_are_known() -> None:
    assert set(PATHS) == {"chat_template", "keys_file", "cache_dir", "preload"}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": "99999"}, ["--port", "65535", "99999"]),
        ({"n_ubatch": "4096"}, ["n_ubatch (4096)", "n_batch (2048)", "--n-ubatch"]),
        ({"host": "0.0.0.0"}, ["0.0.0.0", "api_key", "--host"]),
        ({"host": "0.0.0.0", "api_key": ""}, ["api_key"]),
        ({"model": "a", "hf": "b"}, ["--model", "--hf"]),
        ({"kv_type": "q9"}, ["--kv-type", "'q8_0'"]),
        ({"exact": "1", "kv_type": "f16"}, ["exact", "f32", "--kv-type"]),
        ({"exact": "1", "flash_attn": "on"}, ["exact", "--flash-attn"]),
        ({"kv_type": "q8_0", "flash_attn": "off"}, ["q8_0", "--flash-attn"]),
        ({"n_ctx": "12"}, ["--n-ctx", "256"]),
        ({"host_bytes": "1 zebra"}, ["--host-bytes", "zebra"]),
        ({"keys_file": "~no_such_user_here/x"}, ["--keys-file", "home", "~no_such_user_here/x"]),
        ({"preload": "a=~no_such_user_here/x"}, ["--preload", "home"]),
    ],
)
def test_a_wrong_flag_is_named(flags: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags)
    for word in words:
        assert word in str(caught.value)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATOON_N_BATCH", "many")
    with pytest.raises(ConfigError, match="environment variable RATOON_N_BATCH: .*'many'"):
        load_settings({})


def test_a_wrong_line_of_the_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ratoon.toml").write_text("prot = 1\n")
    with pytest.raises(ConfigError, match=r"prot in ratoon\.toml: there is no such setting"):
        load_settings({})


@pytest.mark.parametrize("text", ["port = ", "port = 1\xff"])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "ratoon.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"ratoon\.toml is not valid TOML"):
        load_settings({})


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load_settings({}, Path("nowhere.toml"))


def test_the_key_is_never_shown() -> None:
    settings = load_settings({"api_key": "swordfish", "host": "0.0.0.0"})
    assert settings.key == "swordfish"
    assert "swordfish" not in repr(settings)
    with pytest.raises(ConfigError) as caught:
        load_settings({"api_key": ["swordfish"]})
    assert "swordfish" not in str(caught.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings({}).port = 1  # type: ignore[misc]


def test_every_setting_is_described() -> None:
    assert all(field.description for field in Settings.model_fields.values())


def test_loopback() -> None:
    assert DEFAULT_URL == "http://127.0.0.1:8788"
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "example.org")] == [False] * 3

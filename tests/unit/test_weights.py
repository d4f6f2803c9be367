"""Finding a model file, and saying what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from ratoon.config import Settings
from ratoon.errors import ConfigError, ModelError
from ratoon.weights import check_weights, embedded_weights, find_weights, part_names

PARTS = [f"big-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


def gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF....")
    return path


def test_the_embedded_model_is_there_and_the_default() -> None:
    assert find_weights(Settings()) == embedded_weights()
    assert embedded_weights().stat().st_size > 50_000_000


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    file = gguf(tmp_path / "m.gguf")
    assert find_weights(Settings(model=str(file))) == file


def test_what_can_not_be_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no model file"):
        check_weights(tmp_path / "nothing.gguf")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match="not a GGUF file"):
        check_weights(tmp_path / "text.gguf")
    with pytest.raises(ModelError, match=r"is a folder; .*text\.gguf"):
        check_weights(tmp_path)


def test_a_split_model_is_loaded_from_its_first_part(tmp_path: Path) -> None:
    first, second, third = (gguf(tmp_path / name) for name in PARTS)
    assert part_names(second.name) == PARTS
    assert check_weights(first) == first
    with pytest.raises(ModelError, match=f"name the first: {first.name}"):
        check_weights(third)
    second.unlink()
    with pytest.raises(ModelError, match=f"parts are missing: {second.name}"):
        check_weights(first)


def test_all_parts_come_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(repo: str, file: str) -> str:
        asked.append((repo, file))
        return str(gguf(tmp_path / Path(file).name))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = find_weights(Settings(hf=f"owner/repo:Q4/{PARTS[1]}"))
    assert found == tmp_path / PARTS[0]
    assert asked == [("owner/repo", f"Q4/{name}") for name in PARTS]


def test_an_unreachable_hub_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: Any) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(ModelError, match="the hub can't be reached"):
        find_weights(Settings(hf="owner/repo:m.gguf"))


@pytest.mark.parametrize("name", ["repo:m.gguf", "owner/repo", "owner/repo:m.bin", "a/b:c:d.gguf"])
def test_a_wrong_hub_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="owner/repo:file.gguf"):
        find_weights(Settings(hf=name))

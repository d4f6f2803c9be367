"""Catalogues from files, for domains that are there from the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ratoon.errors import ConfigError, InvalidRequest
from ratoon.router.catalogue import Catalogue, check_id, parse_tools


def read_preload(files: Mapping[str, Path]) -> dict[str, Catalogue]:
    """By domain id. A file holds a list of tools, or what is posted to register them. Raises
    ConfigError."""
    return {domain_id: _read(domain_id, file) for domain_id, file in files.items()}


def _read(domain_id: str, file: Path) -> Catalogue:
    try:
        check_id(domain_id, "preload")
        value = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            return Catalogue(parse_tools(value))
        return Catalogue(parse_tools(value.get("tools")), str(value.get("system_prompt") or ""))
    except OSError as error:
        raise ConfigError(f"can't read the tools in {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the tools in {file} are not JSON: {error}") from None
    except InvalidRequest as error:
        raise ConfigError(f"the tools in {file} can't be registered: {error}") from None

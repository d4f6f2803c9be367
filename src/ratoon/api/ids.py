"""Random ids in the form of Anthropic's: ``msg_``, ``toolu_``, ``req_`` and 24 characters."""

from __future__ import annotations

import secrets


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(12)}"

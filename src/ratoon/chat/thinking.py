"""Reasoning in a reply: text between two marks, in front of the answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How the model marks its reasoning. ``is_open``: the prompt ends inside it already."""

    start: str = "<think>"
    end: str = "</think>"
    is_open: bool = False

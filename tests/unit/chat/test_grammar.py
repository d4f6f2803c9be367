"""The sources of grammars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ratoon.chat.grammar.lark import Lark


def kept(_subject: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    return schema


@pytest.mark.parametrize("marks", [("<|a", "<|a|>"), ("<|a|>", "<|a")])
def test_a_longer_mark_is_no_shorter_one(marks: tuple[str, str]) -> None:
    lark = Lark({mark: len(mark) for mark in marks}, kept, str)
    assert lark.text("<|a|>x<|a") == '<[5]> "x" <[3]>'

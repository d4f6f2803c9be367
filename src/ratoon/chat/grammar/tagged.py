"""Arguments that stand one by one between tags, as bare text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ratoon.chat.grammar.lark import ANY, MAX_WORD, NOTHING, Lark, number, one_of, plain
from ratoon.chat.grammar.literal import Literals, Notation
from ratoon.chat.grammar.schema import (
    Schema,
    branches,
    extra,
    is_intricate,
    kind,
    members,
    to_text,
    values,
    with_defs,
)

# What the JSON of a type begins with.
_FIRST = {"number": r"\-0-9", "integer": r"\-0-9", "array": r"\[", "object": r"\{"}
_STRINGS = ("string", "any")


@dataclass(frozen=True, slots=True)
class Tags:
    """``opening`` key ``middle`` ``value`` the value ``closing``. The text ``stop`` can't be part
    of a value. ``blank`` is the grammar of what may stand between tags."""

    opening: str
    middle: str
    closing: str
    stop: str
    keys: re.Pattern[str]
    value: str = ""
    blank: str = ""


def write_tagged(lark: Lark, schema: Schema, tags: Tags) -> str:
    """All arguments, in the order of the schema."""
    objects = branches({**schema, "type": "object"}, schema)
    return one_of([_pairs(lark, branch, schema, tags) for branch in objects])


def _pairs(lark: Lark, branch: Schema, root: Schema, tags: Tags) -> str:
    written = []
    for key, item, is_required in members(branch):
        if tags.keys.fullmatch(key) and key == key.strip():
            pair = _pair(lark, plain(key), item, root, tags)
            written.append(pair if is_required else f"({pair})?")
    others = extra(branch)
    if others is not None:
        key = lark.terminal(f"/{tags.keys.pattern}/ & /(?s:.{{1,{MAX_WORD}}})/")
        written.append(f"({_pair(lark, key, others, root, tags)})*")
    return " ".join(written) or NOTHING


def _pair(lark: Lark, key: str, item: Schema, root: Schema, tags: Tags) -> str:
    value = _value(lark, item, root, tags)
    middle = f"{lark.text(tags.middle)} {tags.blank} {lark.text(tags.value)}"
    return f"{lark.text(tags.opening)} {key} {middle} {value} {tags.blank}"


def _value(lark: Lark, schema: Schema, root: Schema, tags: Tags) -> str:
    """A value and the closing tag. Strings are bare; any other type is JSON, which is read as such
    wherever the schema allows its type: a string must then not look like it."""
    literals = Literals(lark, root, Notation(stop=tags.stop))
    found = branches(schema, root)
    has_strings = any(_is_text(branch) for branch in found)
    texts: list[str] = []
    others: list[Schema] = []
    for branch in found:
        simple = number(branch) if has_strings else None
        if kind(branch) == "enum":
            texts += _listed(branch, tags)
        elif kind(branch) in _STRINGS:
            texts.append(lark.strings(branch))
        elif simple is not None:
            texts.append(simple)
        else:
            others.append(branch)
    choices = []
    if texts:
        first = "".join(sorted({_FIRST.get(kind(branch), "") for branch in others}))
        apart = f" & ~/[ \\t\\r\\n]*[{first}](?s:.*)/" if first else ""
        body = " | ".join(f"{text}{apart}" for text in dict.fromkeys(texts))
        choices.append(lark.until(body, tags.closing, tags.stop))
    if others:
        one = others[0] if len(others) == 1 else {"anyOf": others}
        json = lark.json(with_defs(one, root)) if is_intricate(one) else literals.value(one)
        choices.append(f"{json} {lark.text(tags.closing)}")
    return one_of(choices or [lark.until(ANY, tags.closing, tags.stop)])


def _is_text(branch: Schema) -> bool:
    if kind(branch) != "enum":
        return kind(branch) in _STRINGS
    return any(isinstance(value, str) for value in values(branch))


def _listed(branch: Schema, tags: Tags) -> list[str]:
    """The listed values; ``closing`` may be the end of a value that is empty."""
    texts = [value if isinstance(value, str) else to_text(value) for value in values(branch)]
    return [plain(text) or NOTHING for text in texts if tags.stop not in text]

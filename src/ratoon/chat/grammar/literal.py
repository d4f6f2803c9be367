"""Arguments written as literals of a programming language."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ratoon.chat.grammar.lark import MAX_WORD, NOTHING, Lark, number, one_of, plain, without
from ratoon.chat.grammar.schema import (
    Schema,
    branches,
    extra,
    kind,
    members,
    to_text,
    values,
)

# What a string must look like, which only a JSON grammar can say of escaped text.
_FORMS = {"pattern", "format"}
_CHARACTER = r'[^"\\\x00-\x1f\x7f]|\\(["\\bfnrt]|u[0-9a-fA-F]{4})'
_ANY_BARE_KEY = f"/[A-Za-z_][A-Za-z0-9_]{{0,{MAX_WORD - 1}}}/"
_BARE_KEY = re.compile(r"[\w$./-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Notation:
    """How a language writes values; JSON's way where nothing is said. ``quote``: its own quotes of
    strings, between which nothing is escaped. ``constants``: other words for JSON's.
    ``has_bare_keys``: keys inside objects stand without quotes. ``comma`` and ``colon`` come with
    their blanks. ``stop``: a text that no string may hold."""

    comma: str = ", "
    colon: str = ": "
    quote: str = ""
    constants: Mapping[str, str] = field(default_factory=dict)
    has_bare_keys: bool = False
    stop: str = ""


class Literals:
    """Writes the values of one tool's schema."""

    def __init__(self, lark: Lark, root: Schema, notation: Notation) -> None:
        self._lark = lark
        self._root = root
        self._notation = notation

    def arguments(self, equals: str) -> str:
        """The call's own arguments: bare keys, whatever the notation says of inner ones."""
        objects = branches({**self._root, "type": "object"}, self._root)
        return one_of([self._pairs(branch, self._bare_key, equals) for branch in objects])

    def _pairs(self, branch: Schema, key: Callable[[str], str | None], equals: str) -> str:
        """Pairs in the order of the schema, with commas between those that are there."""
        comma, colon = self._lark.text(self._notation.comma), self._lark.text(equals)
        listed = [
            (f"{written} {colon} {self.value(member.schema)}", member)
            for member in members(branch)
            if (written := key(member.key)) is not None
        ]
        more = self._more(extra(branch), key, colon)
        # ``later``: what may follow a pair; ``first``: what may stand where none was yet.
        later = f"({comma} {more})*" if more else ""
        first = f"({more} {later})?" if more else ""
        for pair, member in reversed(listed):
            later, first = (self._lark.rule(text) if text else "" for text in (later, first))
            if member.is_required:
                later, first = f"{comma} {pair} {later}", f"{pair} {later}"
            else:
                first = f"{pair} {later} | {first}" if first else f"({pair} {later})?"
                later = f"({comma} {pair})? {later}"
        return self._lark.rule(first) if first else NOTHING

    def _more(self, schema: Schema | None, key: Callable[[str], str | None], colon: str) -> str:
        """Any further pair; empty where there is none."""
        if schema is None:
            return ""
        name = self._lark.terminal(_ANY_BARE_KEY) if key("a") == plain("a") else ""
        return f"{name or self._string({})} {colon} {self.value(schema)}"

    def _bare_key(self, key: str) -> str | None:
        return plain(key) if _BARE_KEY.fullmatch(key) else None

    def _inner_key(self, key: str) -> str | None:
        return self._bare_key(key) if self._notation.has_bare_keys else self._quoted(key)

    def value(self, schema: Any) -> str:
        """One rule for each schema, so that one may hold itself."""
        return self._lark.named(
            f"{id(self._root)} {self._notation} {to_text(schema)}",
            lambda: one_of([self._branch(each) for each in branches(schema, self._root) or [{}]]),
        )

    def _branch(self, branch: Schema) -> str:
        match kind(branch):
            case "enum":
                return one_of([self._constant(value) for value in values(branch)])
            case "string":
                return self._string(branch)
            case "object":
                return f'"{{" {self._pairs(branch, self._inner_key, self._notation.colon)} "}}"'
            case "array":
                return self._array(branch)
            case "any":
                types = ("string", "number", "boolean", "null", "array", "object")
                return one_of([self.value({"type": name}) for name in types])
            case "boolean":
                return one_of([self._constant(value) for value in (True, False)])
            case "null":
                return self._constant(None)
            case _:
                simple = number(branch)
                return self._lark.terminal(simple) if simple else self._lark.json(branch)

    def _string(self, branch: Schema) -> str:
        quote, stop = self._notation.quote, self._notation.stop
        if not quote:
            if stop and not _FORMS & branch.keys():
                least, most = branch.get("minLength", 0), branch.get("maxLength", "")
                kept = f'/"({_CHARACTER}){{{least},{most}}}"/ & {without(stop)}'
                return self._lark.terminal(kept)
            return self._lark.json({**branch, "type": "string"})
        opening = self._lark.text(quote)
        return f"{opening} {self._lark.until(self._lark.strings(branch), quote, quote)}"

    def _array(self, branch: Schema) -> str:
        item = self.value(branch.get("items", {}))
        least, most = branch.get("minItems", 0), branch.get("maxItems")
        if most == 0:
            return '"[" "]"'
        more = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
        items = f"{item} ({self._lark.text(self._notation.comma)} {item}){{{more}}}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _constant(self, value: Any) -> str:
        return " ".join(part for part in self._constant_parts(value) if part)

    def _constant_parts(self, value: Any) -> list[str]:
        notation, lark = self._notation, self._lark
        if isinstance(value, str):
            return [self._quoted(value)]
        if isinstance(value, dict | list):
            parts = ['"{"' if isinstance(value, dict) else '"["']
            for n, item in enumerate(value):
                parts.append(lark.text(notation.comma) if n else "")
                if isinstance(value, dict):
                    parts += [self._inner_key(item) or plain(item), lark.text(notation.colon)]
                parts += self._constant_parts(value[item] if isinstance(value, dict) else item)
            return [*parts, '"}"' if isinstance(value, dict) else '"]"']
        text = to_text(value)
        return [plain(notation.constants.get(text, text))]

    def _quoted(self, text: str) -> str:
        quote = self._notation.quote
        if not quote:
            return plain(to_text(text))
        mark = self._lark.text(quote)
        return " ".join(part for part in (mark, plain(text), mark) if part)

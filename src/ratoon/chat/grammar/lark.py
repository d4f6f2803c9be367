"""The source of one grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ratoon.chat.grammar.schema import Schema, closed, is_bounded

# Any text. A negation alone would let broken UTF-8 through.
ANY = "/(?s:.*)/"
NOTHING = '""'
# Characters in a bare key and digits in a row: a loop in one ends long before no reading takes it.
MAX_WORD = 100

# The separators of the prompts' JSON; blanks anywhere else are what small models get lost in.
_JSON_STYLE = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
_META = re.compile(r"[\\/.+*?()|\[\]{}^$#&~\-]")

# Whose schema, and the schema, to the nearest one that a grammar can say, with its options.
Fit = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


class Lark:
    """Collects rules. ``tokens`` are the texts that must be written as one token of their own;
    ``regex`` is a JSON schema's pattern as one of this grammar, None where it can't be."""

    def __init__(
        self, tokens: Mapping[str, int], fit: Fit, regex: Callable[[str], str | None]
    ) -> None:
        self.subject = ""  # whose schema is being written
        self._tokens = tokens
        self._marks = any_of(tokens)
        self._fit = fit
        self._regex = regex
        self._rules: dict[str, str] = {}  # name with options → body
        self._names: dict[str, str] = {}  # what a rule is known by → name

    def text(self, markup: str) -> str:
        """The dialect's own text."""
        return " ".join(self._parts(markup))

    def _parts(self, markup: str) -> list[str]:
        parts, at = [], 0
        for mark in self._marks.finditer(markup):
            parts += [plain(markup[at : mark.start()]), f"<[{self._tokens[mark.group()]}]>"]
            at = mark.end()
        return [part for part in (*parts, plain(markup[at:])) if part]

    def rule(self, body: str, options: str = "") -> str:
        """The name of a rule; equal rules are one."""
        return self._name(f"r{options} {body}", "r", options, lambda: body)

    def terminal(self, body: str) -> str:
        """The name of a text pattern."""
        return self._name(f"T {body}", "T", "", lambda: body)

    def named(self, key: str, body: Callable[[], str]) -> str:
        """The name of a rule that may need itself."""
        return self._name(f"n {key}", "n", "", body)

    def _name(self, key: str, prefix: str, options: str, body: Callable[[], str]) -> str:
        known = self._names.get(key)
        if known is None:
            known = self._names[key] = f"{prefix}{len(self._names)}"
            self._rules[known + options] = body()
        return known

    def json(self, schema: Schema) -> str:
        """A JSON value."""
        fitted = self._fit(self.subject, closed(dict(schema)))
        options = {**_JSON_STYLE, **fitted.get("x-guidance", {})}
        return self.rule(f"%json {json.dumps({**fitted, 'x-guidance': options})}")

    def arguments(self, schema: Schema) -> str:
        """A tool's arguments as a JSON object."""
        return self.json({**schema, "type": "object"})

    def until(self, body: str, close: str, stop: str) -> str:
        """Text that matches the pattern ``body`` and holds no ``stop``, then ``close``."""
        kept = self.terminal(f"({body}) & {without(stop)}")
        first, *rest = self._parts(close)
        if first.startswith("<["):
            return " ".join([kept, first, *rest])
        return " ".join([self.rule(f"{kept} {first}", "[lazy]"), *rest])

    def strings(self, branch: Schema) -> str:
        """The pattern of the strings that one alternative of a schema allows."""
        wanted = []
        if isinstance(pattern := branch.get("pattern"), str):
            wanted.append(_searching(pattern))
        least, most = branch.get("minLength", 0), branch.get("maxLength", "")
        if least or most != "":
            wanted.append(f"(?s:.){{{least},{most}}}")
        found = [f"/{regex}/" for each in wanted if (regex := self._regex(each)) is not None]
        return " & ".join([ANY, *found])

    def source(self, start: str) -> str:
        rules = [f"{name}: {body}" for name, body in self._rules.items()]
        return "\n".join([f"start: {start}", *rules])


def any_of(marks: Iterable[str]) -> re.Pattern[str]:
    """Finds the marks; one may be the beginning of another."""
    longest_first = sorted(marks, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def plain(text: str) -> str:
    """Text as it is; empty for none."""
    return json.dumps(text).replace("\x7f", "\\u007f") if text else ""


def one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"


def without(stop: str) -> str:
    """The pattern of what does not hold a text; more than valid UTF-8."""
    return f"~/(?s:.*){escaped(stop)}(?s:.*)/"


def escaped(text: str) -> str:
    """A pattern that matches just this text."""
    return _META.sub(r"\\\g<0>", text).replace("\n", "\\n")


def number(branch: Schema) -> str | None:
    """The pattern of a number, boolean or null that has only its type to fulfil."""
    return None if is_bounded(branch) else _SIMPLE.get(branch.get("type", ""))


_INTEGER = f"-?(0|[1-9][0-9]{{0,{MAX_WORD - 1}}})"
_SIMPLE = {
    "integer": f"/{_INTEGER}/",
    "number": f"/{_INTEGER}(\\.[0-9]{{1,{MAX_WORD}}})?([eE][-+]?[0-9]{{1,3}})?/",
    "boolean": "/true|false/",
    "null": "/null/",
}


def _searching(pattern: str) -> str:
    """A JSON schema's pattern, which may match anywhere, as one that must match everything."""
    is_anchored = pattern.startswith("^")
    is_closed = pattern.endswith("$") and not pattern.endswith("\\$")
    inner = pattern[is_anchored : len(pattern) - is_closed]
    return f"{'' if is_anchored else '(?s:.*)'}({inner}){'' if is_closed else '(?s:.*)'}"

"""Finding deferred tools by what they say of themselves. Pure but for a clock.

Patterns are matched by an engine that never backtracks and limits what a pattern may grow to, so no
pattern can hang the server; look-around and back-references are the price.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from ratoon import wire
from ratoon.chat.typed import MAX_PATTERN, Search

MAX_FOUND = 5
MAX_QUERY = 1000  # characters
LIMIT_S = 1.0

_NAME_WEIGHT = 3  # a word of the name counts like so many of the description
_K1, _B = 1.2, 0.75  # the usual parameters of BM25
_FIELD = 4000  # characters looked at in one text of a tool
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

Clock = Callable[[], float]


def search(
    kind: Search,
    arguments: Mapping[str, Any],
    tools: Sequence[wire.Tool],
    clock: Clock = time.monotonic,
) -> wire.FoundTools | wire.SearchError:
    """The tools that a call finds, best first; or why it found none."""
    name = "query" if kind == "bm25" else "pattern"
    text = arguments.get(name)
    if not isinstance(text, str) or not text.strip():
        return _error("invalid_tool_input", f"{name}: a text is required")
    longest = MAX_QUERY if kind == "bm25" else MAX_PATTERN
    if len(text) > longest:
        return _error("invalid_tool_input", f"{name}: at most {longest} characters are allowed")
    return _ranked(text, tools) if kind == "bm25" else _matching(text, tools, clock)


def _ranked(query: str, tools: Sequence[wire.Tool]) -> wire.FoundTools:
    """By BM25 over name, description, and names and descriptions of arguments."""
    documents = [_words_of(tool) for tool in tools]
    sizes = [sum(words.values()) for words in documents]
    mean = sum(sizes) / max(1, len(sizes)) or 1.0
    scores = [0.0] * len(tools)
    for word in dict.fromkeys(_words(query)):
        n_with = sum(word in words for words in documents)
        weight = math.log(1 + (len(tools) - n_with + 0.5) / (n_with + 0.5))
        for i, words in enumerate(documents):
            n = words.get(word, 0)
            scores[i] += weight * n * (_K1 + 1) / (n + _K1 * (1 - _B + _B * sizes[i] / mean))
    best = sorted(range(len(tools)), key=lambda i: -scores[i])[:MAX_FOUND]
    return _found([tools[i].name for i in best if scores[i] > 0])


def _matching(
    pattern: str, tools: Sequence[wire.Tool], clock: Clock
) -> wire.FoundTools | wire.SearchError:
    """Those of which a text matches; a match of the name comes first."""
    deadline = clock() + LIMIT_S
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        matches = SchemaValidator(schema).isinstance_python
    except SchemaError:
        return _error("invalid_tool_input", "pattern: this is no regular expression known here")
    named, others = [], []
    for tool in tools:
        if clock() > deadline:
            return _error("execution_time_exceeded", "pattern: matching it takes too long")
        if matches(tool.name):
            named.append(tool.name)
        elif any(matches(text[:_FIELD]) for text in _texts(tool)):
            others.append(tool.name)
    return _found([*named, *others][:MAX_FOUND])


def _found(names: Sequence[str]) -> wire.FoundTools:
    references = [wire.ToolReferenceBlock(type="tool_reference", tool_name=n) for n in names]
    return wire.FoundTools(type="tool_search_tool_search_result", tool_references=references)


def _error(code: str, message: str) -> wire.SearchError:
    return wire.SearchError(
        type="tool_search_tool_result_error", error_code=code, error_message=message
    )


def _words_of(tool: wire.Tool) -> Counter[str]:
    words: Counter[str] = Counter()
    for text in _texts(tool):
        words.update(_words(text[:_FIELD]))
    for word in _words(tool.name):
        words[word] += _NAME_WEIGHT
    return words


@lru_cache(maxsize=1 << 15)  # a session searches the same catalogue again and again
def _words(text: str) -> tuple[str, ...]:
    """Lower-case words without a plural's end; ``createFile`` and ``create_file`` are two each."""
    parts = (part for word in _WORD.findall(text) for part in _HUMP.split(word))
    return tuple(_singular(part.lower()) for part in parts)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _texts(tool: wire.Tool) -> Iterator[str]:
    """All but the name."""
    yield tool.description or ""
    yield from _argument_texts(tool.input_schema)


def _argument_texts(schema: object) -> Iterator[str]:
    """Names and descriptions of the arguments, nested ones too."""
    if isinstance(schema, list):
        for item in schema:
            yield from _argument_texts(item)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            for name, inner in value.items():
                yield name
                if isinstance(inner, dict) and isinstance(inner.get("description"), str):
                    yield inner["description"]
                yield from _argument_texts(inner)
        elif key != "description":
            yield from _argument_texts(value)

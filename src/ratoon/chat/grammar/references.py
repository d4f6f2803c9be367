"""What a schema's references must fulfil before a grammar is made of it.

What makes grammars follows references as deep as its stack goes, and dies beyond; and it builds a
grammar without end of a value that must hold itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from ratoon.chat.grammar.schema import Schema, target

_MAX_LEVELS = 1000  # of nesting; half of what a stack of 8 MiB takes
_MAX_PASSES = 32

# Whether a value can end, if those behind these references can.
IsFinite = Callable[[Any, Collection[str]], bool]


def fault(schema: Schema) -> str:
    """Why no grammar may be made of a schema; empty if one may."""
    references = list(dict.fromkeys(_references(schema)))
    if len(references) > _MAX_LEVELS or _n_levels_behind(references, schema) > _MAX_LEVELS:
        return "its references nest too deeply"
    finite: set[str] = set()
    for _ in range(_MAX_PASSES):
        n_known = len(finite)
        for each in reversed(references):  # an inner one comes behind the outer, mostly
            if each not in finite and _is_finite(target(each, schema) or {}, finite):
                finite.add(each)
        if len(finite) == n_known:
            return "" if _is_finite(schema, finite) else "no value that ends fits it"
    return "its references nest too deeply"


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        schema = list(schema.values())
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)


def _n_levels_behind(references: list[str], root: Schema) -> int:
    """Levels of a schema and of all that it refers to: each as deep as the whole schema, where
    what it names is uncertain."""
    levels: dict[int, int] = {}
    n_most = _measure(root, levels)
    has_bases = _has_bases(root)
    named = [None if has_bases else target(each, root) for each in references]
    return n_most + sum(n_most if each is None else levels[id(each)] for each in named)


def _measure(schema: Any, levels: dict[int, int]) -> int:
    """Notes the levels of each part by its identity."""
    inner = list(schema.values()) if isinstance(schema, dict) else schema
    if not isinstance(inner, list):
        return 0
    levels[id(schema)] = 1 + max((_measure(item, levels) for item in inner), default=0)
    return levels[id(schema)]


def _has_bases(root: Schema) -> bool:
    """Whether a reference may start from elsewhere than the root."""
    return any(_mentions(part, "$id") for part in root.values())


def _mentions(schema: Any, key: str) -> bool:
    inner = list(schema.values()) if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and key in schema:
        return True
    return isinstance(inner, list) and any(_mentions(item, key) for item in inner)


def _is_finite(schema: Any, finite: Collection[str]) -> bool:
    """Whether some value without end is not all that fits; what can't be told is taken for yes."""
    if not isinstance(schema, dict):
        return True
    return all(holds(schema, finite) for holds in _CHECKS)


def _reference_is(schema: Schema, finite: Collection[str]) -> bool:
    reference = schema.get("$ref")
    return not isinstance(reference, str) or reference in finite


def _unions_are(schema: Schema, finite: Collection[str]) -> bool:
    unions = [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    return all(not union or any(_is_finite(part, finite) for part in union) for union in unions)


def _parts_are(schema: Schema, finite: Collection[str]) -> bool:
    parts = schema.get("allOf")
    return not isinstance(parts, list) or all(_is_finite(part, finite) for part in parts)


def _members_are(schema: Schema, finite: Collection[str]) -> bool:
    listed, required = schema.get("properties"), schema.get("required")
    if schema.get("type", "object") != "object":
        return True
    if not isinstance(listed, dict) or not isinstance(required, list):
        return True
    names = [name for name in required if isinstance(name, str)]
    return all(_is_finite(listed.get(name), finite) for name in names)


def _items_are(schema: Schema, finite: Collection[str]) -> bool:
    least = schema.get("minItems")
    if schema.get("type", "array") != "array" or not isinstance(least, int | float) or least < 1:
        return True
    return _is_finite(schema.get("items"), finite)


_CHECKS: tuple[IsFinite, ...] = (
    _reference_is,
    _unions_are,
    _parts_are,
    _members_are,
    _items_are,
)

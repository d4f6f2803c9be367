"""Reading JSON schemas: what a value may be, and what a grammar makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

Schema = Mapping[str, Any]

_COMBINED = ("anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if", "not")
_UNIONS = ("anyOf", "oneOf")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_INTRICATE = {"allOf", "not", "if", "patternProperties", "prefixItems", "contains"}
_INTRICATE |= {"minProperties", "maxProperties", "propertyNames", "dependentRequired"}
_MAX_REFS = 32
_MAX_BRANCHES = 64
# What is left of a schema that asks for more than a grammar can say.
_PLAIN = ("type", "properties", "required", "items", "additionalProperties", "enum", "anyOf")
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


class Member(NamedTuple):
    """One property of an object."""

    key: str
    schema: Schema
    is_required: bool


def to_text(value: object) -> str:
    """JSON text as the prompts show it."""
    return json.dumps(value, ensure_ascii=False)


def closed(schema: Any) -> Any:
    """The schema, with no other properties in an object than the listed ones, unless the schema
    speaks of them: what a small model would make up there has no end."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    tight = {key: _closed_inside(key, value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not any(key in schema for key in _COMBINED):
        tight.setdefault("additionalProperties", False)
    return tight


def _closed_inside(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return {name: closed(item) for name, item in value.items()}
    return closed(value) if key in ("items", "additionalProperties", "prefixItems") else value


def pared(schema: Any) -> Any:
    """Only the plain parts of a schema, those that are well formed."""
    if not isinstance(schema, dict):
        return {} if schema is not False else False
    plain = {key: schema[key] for key in _PLAIN if key in schema}
    named = plain.get("type")
    names = named if isinstance(named, list) else [named]
    if not all(name in _TYPES for name in names):
        plain.pop("type", None)
    for key, kind in (("properties", dict), ("required", list), ("enum", list), ("anyOf", list)):
        if key in plain and (not isinstance(plain[key], kind) or not plain[key]):
            plain.pop(key)
    if "properties" in plain:
        plain["properties"] = {key: pared(item) for key, item in plain["properties"].items()}
    if "anyOf" in plain:
        plain["anyOf"] = [pared(item) for item in plain["anyOf"]]
    for key in ("items", "additionalProperties"):
        if key in plain:
            plain[key] = pared(plain[key])
    return plain


def with_defs(schema: Schema, root: Schema) -> dict[str, Any]:
    """A part of ``root`` that can stand alone."""
    defs = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**defs, **schema}


def branches(schema: Any, root: Schema) -> list[dict[str, Any]]:
    """The alternatives that a schema is made of, each with at most one type. ``{}`` is any value;
    no alternative: no value fits."""
    return list(islice(_branches(schema, root, 0), _MAX_BRANCHES))


def _branches(schema: Any, root: Schema, depth: int) -> Iterator[dict[str, Any]]:
    if schema is False:
        return
    plain = resolved(schema, root)
    if depth > _MAX_REFS:
        yield {}
        return
    for key in _UNIONS:
        if isinstance(plain.get(key), list):
            rest = {name: value for name, value in plain.items() if name != key}
            for part in plain[key]:
                if part is not False:
                    merged = _merged(rest, resolved(part, root))
                    yield from _branches(merged, root, depth + 1)
            return
    if isinstance(plain.get("type"), list):
        yield from ({**plain, "type": name} for name in plain["type"])
    else:
        yield plain


def resolved(schema: Any, root: Schema) -> dict[str, Any]:
    """The schema without references and ``allOf`` at its top."""
    plain = dict(schema) if isinstance(schema, Mapping) else {}
    for _ in range(_MAX_REFS):
        if isinstance(reference := plain.pop("$ref", None), str):
            plain = _merged(target(reference, root) or {}, plain)
        elif isinstance(parts := plain.pop("allOf", None), list):
            for part in parts:
                plain = _merged(plain, part if isinstance(part, Mapping) else {})
        else:
            break
    return plain


def target(reference: str, root: Schema) -> Mapping[str, Any] | None:
    """What a local reference names; None for any other."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    both = {**left, **right}
    for key in ("properties", "$defs"):
        if isinstance(left.get(key), dict) and isinstance(right.get(key), dict):
            both[key] = {**left[key], **right[key]}
    if isinstance(left.get("required"), list) and isinstance(right.get("required"), list):
        both["required"] = [*left["required"], *right["required"]]
    return both


def kind(branch: Schema) -> str:
    """The type of one alternative; ``enum`` for listed values, ``any`` where nothing tells."""
    if "const" in branch or isinstance(branch.get("enum"), list):
        return "enum"
    if (named := branch.get("type")) in _TYPES:
        return str(named)
    if "properties" in branch:
        return "object"
    return "array" if "items" in branch else "any"


def values(branch: Schema) -> list[Any]:
    """The listed values of one."""
    return [branch["const"]] if "const" in branch else list(branch["enum"])


def is_bounded(branch: Schema) -> bool:
    """Whether a number has more to fulfil than its type."""
    return any(key in branch for key in (*_BOUNDS, "multipleOf"))


def is_intricate(schema: Any) -> bool:
    """Whether a schema says more than types, members, lengths and listed values."""
    if isinstance(schema, list):
        return any(map(is_intricate, schema))
    if not isinstance(schema, dict):
        return False
    return not _INTRICATE.isdisjoint(schema) or any(map(is_intricate, schema.values()))


def members(branch: Schema) -> list[Member]:
    """The listed properties of an object, and the required ones that are not listed."""
    listed = branch.get("properties")
    listed = listed if isinstance(listed, dict) else {}
    required = branch.get("required")
    required = [key for key in required if isinstance(key, str)] if required else []
    found = [
        Member(key, item if isinstance(item, dict) else {}, key in required)
        for key, item in listed.items()
        if item is not False
    ]
    return found + [Member(key, {}, True) for key in dict.fromkeys(required) if key not in listed]


def extra(branch: Schema) -> Schema | None:
    """The schema of properties that are not listed; None where there are none."""
    found = branch.get("additionalProperties", "properties" not in branch)
    return None if found is False else found if isinstance(found, dict) else {}

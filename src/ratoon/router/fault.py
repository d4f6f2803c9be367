"""Whether a tool's arguments keep to its schema."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from referencing import Registry

Rule = Callable[..., Iterator[ValidationError] | None]

MAX_TOLD = 500  # characters
MAX_STEPS = 20_000  # rules applied; a few references to one another can ask for 2^40


class _TooMuch(Exception):
    """The schema takes more work than any honest one."""


def fault_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What breaks the schema; empty: nothing, or the schema is no sound one.

    Patterns are not looked at: Python's take forever on texts made for that; nor is what no other
    rule has looked at, as finding it is not bounded. References lead to nowhere outside of the
    schema. A schema that asks for too much work is no sound one.
    """
    try:
        kind = _bounded(_without_patterns(validators.validator_for(schema)))
        one_kind = _without_kinds(schema)
        error = next(kind(one_kind, registry=Registry()).iter_errors(arguments), None)
    except Exception:  # whatever a client's schema makes the library stumble over
        return ""
    if error is None:
        return ""
    where = ".".join(map(str, error.path))
    return f"{where}: {error.message}".removeprefix(": ")[:MAX_TOLD]


def _without_kinds(schema: Any) -> Any:
    """Without ``$schema``, as the library would go on with the rules that it names."""
    if isinstance(schema, list):
        return [_without_kinds(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: value if key in ("const", "enum") else _without_kinds(value)
        for key, value in schema.items()
        if key != "$schema" or not isinstance(value, str)
    }


@lru_cache
def _without_patterns(kind: type[Validator]) -> type[Validator]:
    additional = kind.VALIDATORS["additionalProperties"]

    def unless_patterns(
        validator: Validator, rule: Any, value: Any, schema: Mapping[str, Any]
    ) -> Iterator[ValidationError]:
        if "patternProperties" not in schema:
            yield from additional(validator, rule, value, schema) or ()

    rules = {
        "pattern": _nothing,
        "patternProperties": _nothing,
        "additionalProperties": unless_patterns,
        "unevaluatedItems": _nothing,
        "unevaluatedProperties": _nothing,
    }
    extended: type[Validator] = validators.extend(kind, rules)  # type: ignore[no-untyped-call]
    return extended


def _bounded(kind: type[Validator]) -> type[Validator]:
    """For one validation: raises _TooMuch after ``MAX_STEPS``."""
    steps = itertools.count(1)

    def counted(rule: Rule) -> Rule:
        def check(*args: Any) -> Iterator[ValidationError]:
            if next(steps) > MAX_STEPS:
                raise _TooMuch
            yield from rule(*args) or ()

        return check

    rules = {name: counted(rule) for name, rule in kind.VALIDATORS.items()}
    extended: type[Validator] = validators.extend(kind, rules)  # type: ignore[no-untyped-call]
    return extended


def _nothing(*_: Any) -> Iterator[ValidationError]:
    return iter(())

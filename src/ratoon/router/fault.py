"""Whether a tool's arguments keep to its schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import validators
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from referencing import Registry

MAX_TOLD = 500  # characters


def fault_of(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What breaks the schema; empty: nothing, or the schema is no sound one.

    Patterns are not looked at: Python's take forever on texts made for that. References lead to
    nowhere outside of the schema.
    """
    try:
        kind = _without_patterns(validators.validator_for(schema))
        error = next(kind(schema, registry=Registry()).iter_errors(arguments), None)
    except Exception:  # whatever a client's schema makes the library stumble over
        return ""
    if error is None:
        return ""
    where = ".".join(map(str, error.path))
    return f"{where}: {error.message}".removeprefix(": ")[:MAX_TOLD]


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
    }
    extended: type[Validator] = validators.extend(kind, rules)  # type: ignore[no-untyped-call]
    return extended


def _nothing(*_: Any) -> Iterator[ValidationError]:
    return iter(())

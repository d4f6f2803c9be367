"""Whether what a client sends back still means what was sent to it.

Only rewrites that were seen from a real client count. Everything else is an edit, and an edited
reply is not what the model said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratoon.reuse.replies import EchoedBlock, EchoedCall, SentBlock, SentCall, Text, Thought

# Name → JSON schema of the arguments.
Schemas = Mapping[str, Mapping[str, Any]]

_UNPARSED = "__unparsedToolInput"
_UNPARSED_UNITS = 2048  # UTF-16 units of a longer input that a client keeps
# A client that stands in that folder already does not go there again.
_CHANGE_DIRECTORY = re.compile(r"""cd (?:"[^"]*"|'[^']*'|[^\s"';&|]+) && (?=\S)""")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MAX_DIGITS = 32
_NUMBER_TYPES = {"number", "integer"}


def means_same(sent: Sequence[SentBlock], echoed: Sequence[EchoedBlock], schemas: Schemas) -> bool:
    """Whether the echo differs from the reply only in form.

    Blank texts are dropped, thinking is kept as it is or dropped as a whole, and texts may have
    moved in front of the calls.
    """
    back = [block for block in echoed if not _is_blank(block)]
    told = [block for block in sent if not _is_blank(block)]
    if not any(isinstance(block, Thought) for block in back):
        told = [block for block in told if not isinstance(block, Thought)]
    words_first = sorted(told, key=lambda block: isinstance(block, SentCall))
    return any(_are_same(order, back, schemas) for order in (told, words_first))


def _is_blank(block: SentBlock | EchoedBlock) -> bool:
    return isinstance(block, Text) and not block.text.strip()


def _are_same(sent: Sequence[SentBlock], echoed: Sequence[EchoedBlock], schemas: Schemas) -> bool:
    if len(sent) != len(echoed):
        return False
    return all(_is_same_block(*pair, schemas) for pair in zip(sent, echoed, strict=True))


def _is_same_block(sent: SentBlock, echoed: EchoedBlock, schemas: Schemas) -> bool:
    if not isinstance(sent, SentCall):
        return sent == echoed
    if not isinstance(echoed, EchoedCall) or (sent.id, sent.name) != (echoed.id, echoed.name):
        return False
    return _is_same_input(sent, echoed.input, schemas.get(sent.name, {}))


def _is_same_input(sent: SentCall, echoed: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    try:
        value = json.loads(sent.raw or "{}")
    except (ValueError, RecursionError):
        return _is_unparsed(sent.raw, echoed) or echoed == sent.partial
    return isinstance(value, dict) and _is_same(value, echoed, _Schema.of(schema))


def _is_unparsed(raw: str, echoed: Mapping[str, Any]) -> bool:
    """How a call is echoed that was cut off by the token limit: its beginning and its length."""
    kept = echoed.get(_UNPARSED)
    if len(echoed) != 1 or not isinstance(kept, dict) or not kept.keys() <= {"raw", "len"}:
        return False
    told, start = _utf16(raw), kept.get("raw")
    if not isinstance(start, str) or kept.get("len", len(told) // 2) != len(told) // 2:
        return False
    return _utf16(start) in (told, told[: 2 * _UNPARSED_UNITS])


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-le", "surrogatepass")


def _is_same(sent: Any, echoed: Any, schema: _Schema) -> bool:
    match sent, echoed:
        case dict(), dict():
            return _is_same_object(sent, echoed, schema)
        case list(), list():
            items = schema.items()
            is_as_long = len(sent) == len(echoed)
            return is_as_long and all(map(lambda a, b: _is_same(a, b, items), sent, echoed))
        case str(), str():
            return echoed in (sent, _without_line_ends(sent))
    if type(sent) is type(echoed) or (_is_number(sent) and _is_number(echoed)):
        return bool(sent == echoed)
    return schema.is_number and _is_same_number(sent, echoed)


def _is_same_object(sent: dict[str, Any], echoed: dict[str, Any], schema: _Schema) -> bool:
    return sent.keys() <= echoed.keys() and all(
        _is_same_member(key, sent[key], value, schema.member(key))
        if key in sent
        else schema.may_insert(key, value)
        for key, value in echoed.items()
    )


def _is_same_member(key: str, sent: Any, echoed: Any, schema: _Schema) -> bool:
    if _is_same(sent, echoed, schema):
        return True
    if key != "command" or not isinstance(sent, str):
        return False
    start = _CHANGE_DIRECTORY.match(sent)
    return start is not None and _is_same(sent[start.end() :], echoed, schema)


def _without_line_ends(text: str) -> str:
    """The text without blanks at the ends of its lines."""
    return "\n".join(line.rstrip(" \t") for line in text.split("\n"))


def _is_same_number(sent: Any, echoed: Any) -> bool:
    """``"5000"`` comes back as ``5000``."""
    if isinstance(sent, str) and len(sent) <= _MAX_DIGITS and _NUMBER.fullmatch(sent):
        sent = json.loads(sent)
    are_numbers = _is_number(sent) and _is_number(echoed)
    return are_numbers and bool(sent == echoed)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Schema:
    """What a JSON schema says of one value: its alternatives, references resolved."""

    root: Mapping[str, Any]
    forms: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(cls, root: Mapping[str, Any]) -> _Schema:
        return cls(root, tuple(_forms(root, root, set())))

    def _inner(self, schemas: Sequence[Any]) -> _Schema:
        seen: set[int] = set()
        forms = [form for schema in schemas for form in _forms(schema, self.root, seen)]
        return _Schema(self.root, tuple(forms))

    def member(self, key: str) -> _Schema:
        return self._inner([_mapping(form.get("properties")).get(key) for form in self.forms])

    def items(self) -> _Schema:
        return self._inner([form.get("items") for form in self.forms])

    @property
    def types(self) -> set[str]:
        found: set[str] = set()
        for form in self.forms:
            kind = form.get("type")
            found.update(kind if isinstance(kind, list) else [kind] if kind else [])
        return found

    @property
    def is_number(self) -> bool:
        return bool(self.types & _NUMBER_TYPES)

    def may_insert(self, key: str, value: Any) -> bool:
        """Whether a client may add this member: the schema's default, or nothing at all."""
        member = self.member(key)
        if not member.forms:
            return False
        defaults = [form["default"] for form in member.forms if "default" in form]
        if defaults:
            return any(_is_equal(default, value) for default in defaults)
        is_required = any(key in (form.get("required") or ()) for form in self.forms)
        return not is_required and _is_nothing(value, member.types)


def _forms(schema: Any, root: Mapping[str, Any], seen: set[int]) -> Iterator[Mapping[str, Any]]:
    """The schema and all that it refers to or is made of, each once."""
    pending = [schema]
    while pending:
        form = pending.pop()
        if not isinstance(form, Mapping) or id(form) in seen:
            continue
        seen.add(id(form))
        yield form
        for word in ("anyOf", "oneOf", "allOf"):
            parts = form.get(word)
            pending += parts if isinstance(parts, list) else []
        pending.append(_referred(form.get("$ref"), root))


def _referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """The part of the root schema that a reference like ``#/$defs/name`` names."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference[1:].split("/")[1:]:
        found = _mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_equal(left: Any, right: Any) -> bool:
    """Equal as JSON: ``True`` is not ``1``."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)


def _is_nothing(value: Any, types: set[str]) -> bool:
    match value:
        case None:
            return True
        case False:
            return "boolean" in types
        case "":
            return "string" in types
        case []:
            return "array" in types
        case {}:
            return len(value) == 0 and "object" in types
    return False

"""Checks params schemas: JSON Schema 2020-12, limited to what one process can validate alone, in bounded time (ADR 0016).

References stay inside the schema and do not recurse, and the size of the schema with references followed is limited: nested choices
over references would otherwise take exponential time on small values. Unknown keywords are refused, because a misspelt
`exclusiveMinimum` must not silently allow everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import jsonschema_rs

from gavel_rules.language.document.diagnostics import Path
from gavel_rules.text import suggestion

SCHEMA_PARTS_MAX: Final = 2_000
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Report = Callable[[Path, str, str, str], None]  # path inside the schema, code, message, suggestion

# Keywords by their value: one schema, schemas by name, a list of schemas, or no schema.
_ONE: Final = frozenset(
    [
        "items",
        "additionalProperties",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contentSchema",
    ]
)
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs", "dependentSchemas"))
_LISTED: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
# The unevaluated… keywords depend on what the other keywords have evaluated. The library evaluates those again for them, at most three
# times in all.
UNEVALUATED: Final = frozenset(("unevaluatedItems", "unevaluatedProperties"))
EVALUATED_AGAIN: Final = frozenset(("$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains"))
EVALUATIONS: Final = 3
_PLAIN: Final = frozenset(
    [
        "$schema",
        "$ref",
        "$comment",
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "exclusiveMinimum",
        "maxLength",
        "minLength",
        "pattern",
        "maxItems",
        "minItems",
        "uniqueItems",
        "maxContains",
        "minContains",
        "maxProperties",
        "minProperties",
        "required",
        "dependentRequired",
        "format",
        "contentEncoding",
        "contentMediaType",
    ]
)
_KEYWORDS: Final = sorted(_ONE | _NAMED | _LISTED | _PLAIN)
_UNSUPPORTED: Final = frozenset(["$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"])
_TYPES: Final = ["array", "boolean", "integer", "null", "number", "object", "string"]


def check_schema(schema: object, report: Report) -> int:
    """Return the number of parts of a schema, with its references followed. Report the mistakes of an invalid one and return 0."""
    mistakes = 0

    def note(path: Path, code: str, message: str, suggestion: str) -> None:
        nonlocal mistakes
        mistakes += 1
        report(path, code, message, suggestion)

    if not isinstance(schema, dict) or schema.get("type") != "object":
        note((), "schema-not-object", "params must be a JSON Schema of type object", "write `type: object` at its top")
        return 0
    _check_keywords(schema, (), note)
    if not mistakes:
        _check_meta_schema(schema, note)
    return 0 if mistakes else _measure_schema(schema, note)


def resolve_reference(root: object, reference: str) -> object:
    """Return the part of a schema that a local reference names, as the library that validates reads it. Raises LookupError."""
    part = root
    for step in unquote(reference.removeprefix("#/")).split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, list) and is_index(name, len(part)):
            part = part[int(name)]
        elif isinstance(part, dict) and name in part:
            part = part[name]
        else:
            raise LookupError(reference)
    return part


def is_index(text: str, length: int) -> bool:
    """Return whether a text is an index of a list of this length. The library also takes a plus sign and leading zeros."""
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit()):
        return False
    digits = digits.lstrip("0") or "0"
    return len(digits) <= len(str(length)) and int(digits) < length


def _check_keywords(schema: object, path: Path, note: Report) -> None:
    for part, place in walk_schema(schema, path):
        for keyword, value in part.items():
            at = (*place, keyword)
            if keyword in _UNSUPPORTED:
                note(at, "schema-keyword", f"the keyword {keyword} is not supported", "use `$ref` with `#/$defs/…`")
            elif keyword not in _PLAIN and keyword not in _ONE and keyword not in _NAMED and keyword not in _LISTED:
                note(at, "schema-keyword", f"JSON Schema 2020-12 has no keyword {keyword!r}", suggestion(keyword, _KEYWORDS))
            elif keyword == "$schema" and value != DIALECT:
                note(at, "schema-keyword", "only JSON Schema 2020-12 is supported", f"remove $schema, or write {DIALECT}")
            elif keyword == "$ref" and not (value == "#" or (isinstance(value, str) and value.startswith("#/"))):
                note(at, "schema-reference", f"the reference {value!r} leaves the schema", "copy what it names under `$defs`")


def _check_meta_schema(schema: dict[str, Any], note: Report) -> None:
    """Report violations of the specification's meta-schema."""
    reported_paths = set()
    for error in _META_SCHEMA.iter_errors(schema):
        path = tuple(error.instance_path)
        if path not in reported_paths:
            reported_paths.add(path)
            note(path, "schema-invalid", *_describe_violation(error, str(path[-1]) if path else "the schema"))


def _describe_violation(error: jsonschema_rs.ValidationError, keyword: str) -> tuple[str, str]:
    """Return (message, suggestion) for the value of a keyword."""
    if keyword == "type" and isinstance(error.instance, str):
        return f"JSON Schema has no type {error.instance!r}", suggestion(error.instance, _TYPES)
    types = getattr(error.kind, "types", ())
    if types:
        return f"{keyword} must be of type {' or '.join(types)}", ""
    return f"the value violates the rule {error.kind.name!r} of JSON Schema for this keyword", "see json-schema.org"


def _measure_schema(schema: dict[str, Any], note: Report) -> int:
    """Return the number of parts of a schema with its references followed; 0 with mistakes reported.

    A part counts as often as the library evaluates it: nested `unevaluatedProperties` would otherwise take exponential time.
    """
    sizes: dict[str, int] = {}
    open_references: set[str] = set()
    sound = True

    def size(part: object, path: Path) -> int:
        if not isinstance(part, dict):
            return 1
        total = 1
        times = EVALUATIONS if part.keys() & UNEVALUATED else 1
        reference = part.get("$ref")
        if isinstance(reference, str):
            total += times * size_of_reference(reference, (*path, "$ref"))
        for below, place in parts_inside(part, path):
            keyword = place[len(path)]
            if keyword != "$defs":
                total += size(below, place) * (times if keyword in EVALUATED_AGAIN else 1)
        return total

    def size_of_reference(reference: str, path: Path) -> int:
        nonlocal sound
        if reference in open_references or reference == "#":
            sound = False
            note(
                path, "schema-reference", f"the reference {reference!r} recurses", "write out the nested schema to the depth that you need"
            )
            return 1
        if reference not in sizes:
            try:
                target = resolve_reference(schema, reference)
            except LookupError:
                sound = False
                note(path, "schema-reference", f"the reference {reference!r} names no part of this schema", "correct it")
                return 1
            open_references.add(reference)
            sizes[reference] = size(target, path)
            open_references.discard(reference)
        return sizes[reference]

    total = size(schema, ()) + sum(size(below, place) for below, place in parts_inside(schema, ()) if place[0] == "$defs")
    if sound and total > SCHEMA_PARTS_MAX:
        sound = False
        again = any(part.keys() & UNEVALUATED for part, _ in walk_schema(schema, ()))
        note(
            (),
            "schema-too-large",
            f"with references followed, the schema has {total} parts; the limit is {SCHEMA_PARTS_MAX}",
            f"keywords next to {' or '.join(sorted(UNEVALUATED))} count {EVALUATIONS} times" if again else "simplify it",
        )
    return total if sound else 0


def walk_schema(schema: object, path: Path) -> Iterator[tuple[dict[str, Any], Path]]:
    """Yield every mapping that is a schema, with its path."""
    if isinstance(schema, dict):
        yield schema, path
        for part, place in parts_inside(schema, path):
            yield from walk_schema(part, place)


def parts_inside(schema: dict[str, Any], path: Path) -> Iterator[tuple[object, Path]]:
    """Yield the schemas directly inside a schema, with their paths."""
    for keyword, value in schema.items():
        if keyword in _ONE:
            yield value, (*path, keyword)
        elif keyword in _NAMED and isinstance(value, dict):
            for name, part in value.items():
                yield part, (*path, keyword, name)
        elif keyword in _LISTED and isinstance(value, list):
            for index, part in enumerate(value):
                yield part, (*path, keyword, index)


_META_SCHEMA: Final = jsonschema_rs.Draft202012Validator({"$ref": DIALECT}, offline=True)

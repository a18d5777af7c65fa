"""The types of params for CEL, from their JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from gavel_rules.language.cel.pattern_cost import measure_pattern
from gavel_rules.language.cel.vocabulary import BOOL, DOUBLE, DYN, INT, STRING, Field, ValueType
from gavel_rules.language.document.schema_check import resolve_reference

_PLAIN_TYPES: Final[Mapping[str, ValueType]] = {"string": STRING, "integer": INT, "number": DOUBLE, "boolean": BOOL}


def type_of_schema(schema: object, root: dict[str, Any]) -> ValueType:
    """Return the type that all values of a schema have. The schema is checked, so its references do not recurse."""
    type_ = _plain_type_of(schema, root)
    if not isinstance(schema, dict) or type_.kind not in _SIZES:
        return type_
    # The meta-schema requires whole numbers, and 5.0 is one.
    declared = [int(schema[_SIZES[type_.kind]])] if _SIZES[type_.kind] in schema else []
    if type_.kind == "string":
        literals = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(literals, list):
            declared.append(max((len(literal) for literal in literals if isinstance(literal, str)), default=0))
        if isinstance(schema.get("pattern"), str):
            longest = measure_pattern(schema["pattern"]).longest
            declared.extend([longest] if longest is not None else [])
    if type_.size_max is not None:
        declared.append(type_.size_max)  # of the schema it refers to
    return replace(type_, size_max=min(declared)) if declared else type_


_SIZES: Final[Mapping[str, str]] = {"string": "maxLength", "list": "maxItems", "map": "maxProperties"}


def _plain_type_of(schema: object, root: dict[str, Any]) -> ValueType:
    if not isinstance(schema, dict):
        return DYN
    declared = schema.get("type")
    if isinstance(declared, list) and len(declared) == 1:
        declared = declared[0]
    if declared is None and isinstance(schema.get("$ref"), str):
        return type_of_schema(resolve_reference(root, schema["$ref"]), root)
    match declared:
        case "string":
            return STRING
        case "integer":
            return INT
        case "number":
            return DOUBLE
        case "boolean":
            return BOOL
        case "array":
            return ValueType("list", DYN if "prefixItems" in schema else type_of_schema(schema.get("items"), root))
        case "object":
            return _object_type(schema, root)
        case None:
            return _type_of_literals([schema["const"]] if "const" in schema else schema.get("enum"))
    return DYN


def _object_type(schema: dict[str, Any], root: dict[str, Any]) -> ValueType:
    properties = schema.get("properties")
    if not properties:
        # `patternProperties` gives some names another type.
        return ValueType("map", DYN if "patternProperties" in schema else type_of_schema(schema.get("additionalProperties"), root))
    required = frozenset(schema.get("required", ()))
    fields = {name: Field(type_of_schema(part, root), name in required) for name, part in properties.items()}
    return ValueType("object", fields=fields)


def literals_at(schemas: Iterable[Mapping[str, Any]], path: str) -> tuple[str | float, ...] | None:
    """Return all values that some schemas allow at a dotted path of their properties; None if one of them does not list texts or numbers.

    The schemas are checked, so their references do not recurse.
    """
    allowed: dict[str | float, None] = {}
    for root in schemas:
        schema: object = root
        for step in path.split("."):
            schema = _with_keyword("properties", schema, root)
            schema = schema["properties"].get(step) if schema is not None else None
        listed = _with_keyword("const", schema, root) or _with_keyword("enum", schema, root)
        values = [] if listed is None else [listed["const"]] if "const" in listed else listed["enum"]
        texts = [value for value in values if isinstance(value, str | int | float) and not isinstance(value, bool)]
        if not texts:
            return None
        allowed.update(dict.fromkeys(texts))
    return tuple(allowed) or None


def _with_keyword(keyword: str, schema: object, root: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema, or the one that it refers to, if it has a keyword."""
    while isinstance(schema, dict) and keyword not in schema and isinstance(schema.get("$ref"), str):
        schema = resolve_reference(root, schema["$ref"])
    return schema if isinstance(schema, dict) and keyword in schema else None


def _type_of_literals(literals: object) -> ValueType:
    if not isinstance(literals, list) or not literals:
        return DYN
    kinds = {type(literal) for literal in literals}
    if kinds == {str}:
        return STRING
    if kinds == {bool}:
        return BOOL
    if kinds <= {int, float}:
        # 1.0 is an integer, as in JSON Schema: canonical JSON writes both as 1.
        return INT if all(literal == int(literal) for literal in literals) else DOUBLE
    return DYN


def salvage_type(schema: object) -> ValueType:
    """Return the type of the params of a broken schema: its properties, with the types that can be read.

    If not even the properties can be read, the type is "dyn".
    """
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        return DYN
    required = schema.get("required")
    names = required if isinstance(required, list) else list(properties)
    types = {name: part.get("type") if isinstance(part, dict) else None for name, part in properties.items()}
    return ValueType(
        "object",
        fields={
            name: Field(_PLAIN_TYPES.get(type_, DYN) if isinstance(type_, str) else DYN, name in names) for name, type_ in types.items()
        },
    )

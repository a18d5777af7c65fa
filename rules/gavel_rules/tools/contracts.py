"""Tool contracts: the hash of their schemas, and whether a new schema keeps the promises of the one before.

A version of a contract promises two things: arguments that were valid stay valid, and results mean what they meant. `breaking_changes`
decides this without solving schemas: it knows the changes that keep both promises, and calls every other one breaking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from gavel.v1.tool_pb2 import ToolContract

from gavel_rules.language.document.canonical_form import to_canonical_json
from gavel_rules.values import struct_to_dict

# Keywords that describe a schema and restrict nothing.
_ANNOTATIONS: Final = frozenset(
    {"$comment", "$id", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title", "writeOnly"}
)
# Keywords that restrict by themselves, whatever stands beside them: a schema without one accepts more.
_LOWER_BOUNDS: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER_BOUNDS: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_CHOICES: Final = frozenset({"type", "enum"})
_RESTRICTIONS: Final = (
    _LOWER_BOUNDS
    | _UPPER_BOUNDS
    | _CHOICES
    | {"const", "multipleOf", "pattern", "uniqueItems", "format", "not", "allOf", "anyOf", "oneOf", "propertyNames", "dependentRequired"}
)
# Keywords whose meaning depends on the properties and items that others beside them speak of: if there is one, those others may break.
_OF_OTHERS: Final = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties"})
_SPEAKERS: Final = frozenset({"additionalProperties", "allOf", "anyOf", "oneOf"})
_HASH_DIGITS: Final = 32


def schema_hash(contract: ToolContract) -> str:
    """Return "sha256:" and 32 hex digits over the canonical JSON of both schemas."""
    schemas = {"argument_schema": struct_to_dict(contract.argument_schema), "result_schema": struct_to_dict(contract.result_schema)}
    return "sha256:" + hashlib.sha256(to_canonical_json(schemas).encode()).hexdigest()[:_HASH_DIGITS]


def breaking_changes(before: ToolContract, after: ToolContract) -> list[str]:
    """Return where the schemas of `after` break the promises of `before`, e.g. "argument_schema.properties.path"; [] if nowhere."""
    changes: list[str] = []
    for field, may_widen in (("argument_schema", True), ("result_schema", False)):
        old, new = (struct_to_dict(getattr(contract, field)) for contract in (before, after))
        _compare(old, new, field, changes, may_widen=may_widen)
    return changes


def _compare(before: Any, after: Any, path: str, differences: list[str], *, may_widen: bool) -> None:
    """Note breaking differences of two schemas. With `may_widen`, `after` may accept more values than `before`; else only fewer."""
    before, after = _without_annotations(before), _without_annotations(after)
    if before == after:
        return
    if not isinstance(before, dict) or not isinstance(after, dict):
        differences.append(path)
        return
    wider, narrower = (after, before) if may_widen else (before, after)
    for keyword in sorted(before.keys() | after.keys()):
        if keyword == "properties":
            _compare_properties(before, after, path, differences, may_widen=may_widen)
        elif keyword == "items" and keyword in before and keyword in after:
            _compare(before[keyword], after[keyword], f"{path}.items", differences, may_widen=may_widen)
        elif before.get(keyword) != after.get(keyword) and not _accepts_more(keyword, wider, narrower):
            differences.append(f"{path}.{keyword}")


def _accepts_more(keyword: str, wider: Mapping[str, Any], narrower: Mapping[str, Any]) -> bool:
    """Return whether a keyword, which differs, lets `wider` accept all that it lets `narrower` accept."""
    if keyword in _SPEAKERS and not _OF_OTHERS.isdisjoint(wider.keys() | narrower.keys()):
        return False
    if keyword == "required":
        return _items(wider.get(keyword)) <= _items(narrower.get(keyword))
    if keyword == "additionalProperties":
        return wider.get(keyword, True) is True
    if keyword not in _RESTRICTIONS or keyword not in narrower:
        return False
    if keyword not in wider:
        return True
    loose, tight = wider[keyword], narrower[keyword]
    if keyword in _CHOICES:
        return _items(tight) <= _items(loose)
    if isinstance(loose, int | float) and isinstance(tight, int | float):
        return (keyword in _LOWER_BOUNDS and loose <= tight) or (keyword in _UPPER_BOUNDS and loose >= tight)
    return False


def _compare_properties(before: Mapping[str, Any], after: Mapping[str, Any], path: str, differences: list[str], *, may_widen: bool) -> None:
    old, new = before.get("properties", {}), after.get("properties", {})
    if not isinstance(old, dict) or not isinstance(new, dict):
        differences.append(f"{path}.properties")
        return
    for name in sorted(old.keys() | new.keys()):
        place = f"{path}.properties.{name}"
        if name in old and name in new:
            _compare(old[name], new[name], place, differences, may_widen=may_widen)
            continue
        # The schema without the property lets it be anything, or forbids it, unless other keywords speak of it.
        without = after if name in old else before
        others = without.get("additionalProperties", True)
        breaks = others is not False if (name in new) == may_widen else others is not True
        if breaks or not _OF_OTHERS.isdisjoint(without):
            differences.append(place)


def _without_annotations(schema: Any) -> Any:
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS} if isinstance(schema, dict) else schema


def _items(value: Any) -> set[str]:
    """Return the items of a list, or one value as the only item, as JSON."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    return {to_canonical_json(item) for item in items}

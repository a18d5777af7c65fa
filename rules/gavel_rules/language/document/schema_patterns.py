"""The regular expressions of a schema: the worst cost of their searches, and texts too long for them.

Costs count for deployments, and never refuse a document that a log holds (ADR 0036).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final, NamedTuple

from gavel_rules.language.cel.cost import DECISION_STEPS_MAX
from gavel_rules.language.cel.pattern_cost import CODE_POINT_BYTES
from gavel_rules.language.document.diagnostics import Path
from gavel_rules.language.document.pattern_search import search_steps
from gavel_rules.language.document.schema_check import (
    EVALUATED_AGAIN,
    EVALUATIONS,
    UNEVALUATED,
    parts_inside,
    resolve_reference,
    walk_schema,
)
from gavel_rules.limits import MESSAGE_BYTES_MAX, TEXT_BYTES_MAX

_VALUES_MAX: Final = MESSAGE_BYTES_MAX // 4  # in one message: an empty text in a list takes four bytes
_OF_ITEMS: Final = frozenset(("items", "contains", "unevaluatedItems"))
_OF_PROPERTIES: Final = frozenset(("patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"))


class PatternCost(NamedTuple):
    """The worst cost of all searches with one pattern while one value is validated."""

    path: Path  # of the pattern in the schema
    steps: int


def find_pattern_costs(schema: dict[str, Any], values_listed: int) -> tuple[PatternCost, ...]:
    """Return the cost of each pattern of a schema that `check_schema` accepts, also of those that are keys of patternProperties.

    `values_listed` is the number of values up to which violations are listed one by one. The library then searches all elements of a list,
    even if they are more than its maxItems.
    """

    def visit(part: object, path: Path, values: int, listed: int, times: int) -> Iterator[PatternCost]:
        if not isinstance(part, dict):
            return
        pattern = part.get("pattern")
        if isinstance(pattern, str):
            searched = max(values, listed) if is_costly(pattern) else values
            yield cost((*path, "pattern"), pattern, searched, times, part.get("maxLength"))
        inside = {keyword: multiply(values, part.get("maxItems")) for keyword in _OF_ITEMS}
        inside |= {keyword: multiply(values, part.get("maxProperties")) for keyword in _OF_PROPERTIES}
        for key in part.get("patternProperties", ()):
            searched = max(inside["patternProperties"], values_listed) if is_costly(key) else inside["patternProperties"]
            yield cost((*path, "patternProperties", key), key, searched, times, None)
        again = times * EVALUATIONS if part.keys() & UNEVALUATED else times
        if "$ref" in part:
            yield from visit(resolve_reference(schema, part["$ref"]), (*path, "$ref"), values, listed, again)
        for below, place in parts_inside(part, path):
            keyword = str(place[len(path)])
            if keyword != "$defs":
                of_part = (inside[keyword], values_listed) if keyword in inside else (values, listed)
                yield from visit(below, place, *of_part, again if keyword in EVALUATED_AGAIN else times)

    def multiply(values: int, limit: float | None) -> int:
        return _VALUES_MAX if limit is None else min(values * int(limit), _VALUES_MAX)

    def cost(path: Path, pattern: str, values: int, times: int, length: float | None) -> PatternCost:
        text_bytes = TEXT_BYTES_MAX if length is None else min(int(length) * CODE_POINT_BYTES, TEXT_BYTES_MAX)
        return PatternCost(path, math.ceil(times * search_steps(pattern, min(values * text_bytes, MESSAGE_BYTES_MAX), values)))

    return tuple(visit(schema, (), 1, 1, 1))


def spare_long_texts(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose patterns are searched only in texts that are no longer than the maxLength beside them.

    The library searches a text that is too long as well when it lists violations.
    """
    if not any(_is_spared(part) for part, _ in walk_schema(schema, ())):
        return schema
    spared = deepcopy(schema)
    for part, _ in list(walk_schema(spared, ())):
        if _is_spared(part):
            within = {"if": {"maxLength": part["maxLength"]}, "then": {"pattern": part.pop("pattern")}}
            part["allOf"] = [*part.get("allOf", ()), within]
    return spared


def _is_spared(part: dict[str, Any]) -> bool:
    return "maxLength" in part and "pattern" in part


def is_costly(pattern: str) -> bool:
    """Return whether one search through a text of any length may take longer than a decision."""
    return search_steps(pattern, TEXT_BYTES_MAX, 1) > DECISION_STEPS_MAX

"""How much work a JSON Schema of a tool's contract makes: for the server that compiles it, and for runtimes that check values by it.

A small schema can take hours: patterns with large repetitions compile slowly, and choices over references double the checks of one value
at each step. The library stops at a reference that leads back to its own place, and follows one that recurses into a part of the value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from gavel_rules.language.document.schema_check import is_index
from gavel_rules.limits import TOOL_SCHEMA_PARTS_MAX, TOOL_SCHEMA_PATTERNS_MAX

# Steps of one measurement; a schema that needs more is refused.
_STEPS_MAX: Final = 10_000
# Keywords whose schemas apply to the same value as the schema around them, by their value.
_SAME_ONE: Final = ("not", "if", "then", "else")
_SAME_LISTED: Final = ("allOf", "anyOf", "oneOf")
_SAME_NAMED: Final = ("dependentSchemas",)
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
# Keywords whose schemas apply to parts of the value: to items, or to any property.
_ITEMS: Final = ("items", "contains", "unevaluatedItems")
_PROPERTIES: Final = ("additionalProperties", "propertyNames", "unevaluatedProperties")
# The library evaluates what stands beside these keywords up to three times.
_UNEVALUATED: Final = frozenset(("unevaluatedItems", "unevaluatedProperties"))
_EVALUATIONS: Final = 3
_ANY: Final = "*"
_ITEM: Final = "[]"

# How often the library evaluates each schema, by the id of its mapping, at one place of a value.
_Counts = Counter[int]


class _TooMuchWorkError(Exception):
    """The schema makes too much work; the text says why."""


def work_problem(schema: Mapping[str, Any]) -> str:
    """Return why a schema makes too much work, or ""."""
    try:
        _Measurement(schema).run()
    except _TooMuchWorkError as error:
        return str(error)
    return ""


class _Measurement:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root: Final = schema
        self._steps_left = _STEPS_MAX
        self._schemas: Final[dict[int, Mapping[str, Any]]] = {}
        self._named: Final[dict[str, Mapping[str, Any]]] = {"#": schema}
        patterns = 0
        for part in _mappings(schema):
            self._spend()
            patterns += isinstance(part.get("pattern"), str) + len(_mapping(part.get("patternProperties")))
            self._named.update((f"#{part[key]}", part) for key in _ANCHORS if isinstance(part.get(key), str))
            if part is not schema and isinstance(part.get("$id"), str):
                raise _TooMuchWorkError("has a part with an $id of its own; name it under $defs")
        if patterns > TOOL_SCHEMA_PATTERNS_MAX:
            raise _TooMuchWorkError(f"has {patterns} patterns; the limit is {TOOL_SCHEMA_PATTERNS_MAX}")

    def run(self) -> None:
        """Visit every place that a value may have. Raises _TooMuchWorkError."""
        visits: set[frozenset[tuple[int, int]]] = set()
        waiting = [self._note(Counter(), self._root, 1)]
        while waiting:
            counts = waiting.pop()
            key = frozenset(counts.items())
            if key in visits:
                continue
            visits.add(key)
            waiting.extend(self._below(self._at_place(counts)))

    def _at_place(self, counts: _Counts) -> _Counts:
        """Return how often each schema is evaluated at a place, with those that apply to the same value."""
        evaluations: _Counts = Counter()
        for number, times in counts.items():
            self._apply(self._schemas[number], times, frozenset(), evaluations)
        return evaluations

    def _apply(self, schema: object, times: int, ancestors: frozenset[int], counts: _Counts) -> None:
        if not isinstance(schema, dict) or id(schema) in ancestors:
            return
        self._spend()
        self._note(counts, schema, times)
        if counts.total() > TOOL_SCHEMA_PARTS_MAX:
            raise _TooMuchWorkError(f"may check one value by more than {TOOL_SCHEMA_PARTS_MAX} parts, with references followed")
        ancestors |= {id(schema)}
        times *= _EVALUATIONS if schema.keys() & _UNEVALUATED else 1
        for part in self._same_value(schema):
            self._apply(part, times, ancestors, counts)

    def _same_value(self, schema: Mapping[str, Any]) -> Iterator[object]:
        for key in _REFERENCES:
            if key in schema:
                yield self._target(schema[key])
        for key in _SAME_ONE:
            yield schema.get(key)
        for key in _SAME_LISTED:
            yield from _list(schema.get(key))
        for key in _SAME_NAMED:
            yield from _mapping(schema.get(key)).values()

    def _below(self, counts: _Counts) -> list[_Counts]:
        """Return the counts at the places below: any item, each named property, and any other property."""
        places: dict[str, _Counts] = {}
        for number, times in counts.items():
            schema = self._schemas[number]
            below = [(_ITEM, schema.get(key)) for key in _ITEMS]
            below += [(_ITEM, part) for part in _list(schema.get("prefixItems"))]
            below += [(_ANY, schema.get(key)) for key in _PROPERTIES]
            below += [(_ANY, part) for part in _mapping(schema.get("patternProperties")).values()]
            below += [(f"/{name}", part) for name, part in _mapping(schema.get("properties")).items()]
            for place, part in below:
                if isinstance(part, dict):
                    self._spend()
                    self._note(places.setdefault(place, Counter()), part, times)
        others = places.get(_ANY, Counter())
        return [counts_of_place + others if place.startswith("/") else counts_of_place for place, counts_of_place in places.items()]

    def _target(self, reference: object) -> object:
        if isinstance(reference, str) and unquote(reference) in self._named:
            return self._named[unquote(reference)]
        part: object = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            if "$id" in self._root:
                raise _TooMuchWorkError(f"has a reference that is not followed here, {str(reference)[:64]!r}; use #/$defs/…")
            return None  # to another document: the library refuses it
        for step in unquote(reference[2:]).split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            is_item = isinstance(part, list) and is_index(name, len(part))
            part = part[int(name)] if is_item else _mapping(part).get(name)  # type: ignore[index]  # a list
        return part

    def _note(self, counts: _Counts, schema: Mapping[str, Any], times: int) -> _Counts:
        self._schemas[id(schema)] = schema
        counts[id(schema)] += times
        return counts

    def _spend(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise _TooMuchWorkError("is too complicated to be measured; simplify it")


def _mappings(value: object) -> Iterator[dict[str, Any]]:
    """Yield every mapping in a JSON value."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

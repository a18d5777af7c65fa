"""Sample values for a JSON Schema, chosen near the constants of the conditions that read them.

Nothing is random: the same schema and conditions give the same values, the plainest first. The caller checks every value against the
schema, so a poor guess can lose a case but cannot make an answer wrong.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.hints import ITEMS_MAX, NO_HINTS, Hints
from gavel_rules.authoring.samples.texts import sample_texts
from gavel_rules.language.document.schema_check import resolve_reference
from gavel_rules.values import INTEGER_MAX, size_of

# The distance from a threshold to its neighbours, of numbers with a fraction.
STEP: Final = 0.01

VALUES_MAX: Final = 64
VALUE_SIZE_MAX: Final = 16_000  # see `size_of`
SCHEMA_DEPTH_MAX: Final = 8
# Steps of a Budget: to read a part of a schema, and to build and compare each part of a value.
_PART_STEPS: Final = 5
_VALUE_STEPS: Final = 2


class Sampler:
    """Gives sample values for the parts of one schema, the plainest first. Gives none once the budget is exhausted."""

    def __init__(self, root: Mapping[str, Any], hints: Mapping[str, Hints], budget: Budget) -> None:
        self._root = root
        self._hints = hints
        self._budget = budget

    def values(self, part: object, path: str, depth: int = 0) -> list[object]:
        """Return values to try for a part of the schema. Not all need be valid."""
        if not self._budget.take(_PART_STEPS):
            return []
        return list(islice(deduplicate(self._within_budget(self._candidates(part, path, depth))), VALUES_MAX))

    def _within_budget(self, values: Iterable[object]) -> Iterator[object]:
        for value in values:
            if not self._budget.take(_VALUE_STEPS * size_of(value)):
                break
            yield value

    def _candidates(self, part: object, path: str, depth: int) -> Iterator[object]:
        schema = resolve_schema(part, self._root)
        if "default" in schema:
            yield schema["default"]
        yield from schema.get("examples", ())
        if "const" in schema:
            yield schema["const"]
        elif "enum" in schema:
            yield from schema["enum"]
        else:
            for choice in ("anyOf", "oneOf"):
                branches = schema.pop(choice, ())
                for branch in branches if depth < SCHEMA_DEPTH_MAX else ():
                    yield from self.values({**schema, **resolve_schema(branch, self._root)}, path, depth + 1)
            types = schema.get("type", "string")
            for type_ in types if isinstance(types, list) else [types]:
                yield from self._of_type(type_, schema, path, depth)

    def _of_type(self, type_: object, schema: dict[str, Any], path: str, depth: int) -> Iterable[object]:
        hints = self._hints.get(path, NO_HINTS)
        match type_:
            case "string":
                return sample_texts(schema, hints)
            case "number" | "integer":
                return _numbers(schema, hints, type_ == "integer")
            case "boolean":
                return (False, True)
            case "array":
                return self._arrays(schema, hints, path, depth)
            case "object":
                return self._objects(schema, hints, path, depth)
        return (None,)

    def _arrays(self, schema: dict[str, Any], hints: Hints, path: str, depth: int) -> Iterator[object]:
        items = self.values(schema.get("items", {}), f"{path}[]", depth + 1) if depth < SCHEMA_DEPTH_MAX else []
        least = int(schema.get("minItems", 0))
        if least > ITEMS_MAX:
            return
        if not items:
            yield []
            return
        items = [item for item in items if size_of(item) * max(least, 1) <= VALUE_SIZE_MAX]
        if not items:
            return
        for length in deduplicate([least, *(n + offset for n in hints.lengths for offset in (-1, 0, 1)), least + 1]):
            if isinstance(length, int) and 0 <= length <= ITEMS_MAX and size_of(items[0]) * length <= VALUE_SIZE_MAX:
                yield _repeat(items[0], length)
        for item in items:
            yield _repeat(item, max(least, 1))
        for item in items[1:]:
            yield [items[0], item]
            for length in hints.lengths:
                if size_of(items[0]) * length <= VALUE_SIZE_MAX:
                    yield from ([item, *_repeat(items[0], length + offset - 1)] for offset in (-1, 0, 1) if length + offset >= 1)

    def _objects(self, schema: dict[str, Any], hints: Hints, path: str, depth: int) -> Iterator[object]:
        properties = schema.get("properties", {})
        if depth >= SCHEMA_DEPTH_MAX:
            return
        plainest = {
            name: values[0]
            for name in schema.get("required", ())
            if (values := self.values(properties.get(name, {}), f"{path}.{name}", depth + 1))
        }
        yield plainest
        if not properties:
            for name in hints.constants:
                if isinstance(name, str):
                    for value in self.values(schema.get("additionalProperties", {}), f"{path}[]", depth + 1)[:8]:
                        yield {**plainest, name: value}
            return
        # Combinations of properties, because the body of a macro reads several properties of one element.
        variants: list[dict[str, object]] = [plainest]
        for name, part in properties.items():
            options = self.values(part, f"{path}.{name}", depth + 1)[:6]
            more = [{**variant, name: option} for variant in variants for option in options]
            variants.extend(more[: 12 - len(variants)])
            yield from more


def resolve_schema(part: object, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its `$ref` followed and its `allOf` merged, at its top level only."""
    if not isinstance(part, dict):
        return {}
    schema = dict(part)
    for _ in range(SCHEMA_DEPTH_MAX):
        reference = schema.pop("$ref", None)
        if reference is None:
            break
        target = resolve_reference(root, reference)
        schema = {**(target if isinstance(target, dict) else {}), **schema}
    for branch in schema.pop("allOf", ()):
        schema = {**resolve_schema(branch, root), **schema}
    return schema


def deduplicate(values: Iterable[object]) -> Iterator[object]:
    """Yield each value once; see `value_key`."""
    keys: set[str] = set()
    for value in values:
        known = len(keys)
        keys.add(value_key(value))
        if len(keys) > known:
            yield value


def value_key(value: object) -> str:
    """Return a text that differs for different values; 1, 1.0 and true are three."""
    return f"{type(value).__name__} {value!r}"


def neighbours(value: float, is_integer: bool) -> tuple[float, ...]:
    """Return a threshold, and the values next to it on both sides."""
    if is_integer:
        return (math.floor(value), math.floor(value) + 1, math.ceil(value) - 1)
    return (value, round_fraction(value + STEP), round_fraction(value - STEP))


def round_fraction(value: float) -> float:
    """Return a number without the rounding error of binary fractions: 0.91 instead of 0.9100000000000001."""
    return round(value, 9)


def _numbers(schema: Mapping[str, Any], hints: Hints, is_integer: bool) -> Iterator[float]:
    bounds = [schema[name] for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in schema]
    numbers: list[float] = [1, 0]
    for value in (*hints.constants, *bounds):
        if isinstance(value, int | float):
            numbers.extend(neighbours(value, is_integer))
    multiple = schema.get("multipleOf")
    if multiple and max(map(abs, numbers)) / multiple < INTEGER_MAX:
        numbers = [multiple, *numbers, *(math.floor(value / multiple) * multiple for value in numbers)]
        numbers.extend([value + multiple for value in numbers])
    if not hints.constants:
        numbers.extend((-1, 1000) if is_integer else (-1, 0.5, 1000))
    for value in numbers:
        if (
            value >= schema.get("minimum", value)
            and value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
            and abs(value) <= INTEGER_MAX
        ):
            yield value


def _repeat(item: object, length: int) -> list[object]:
    """Return a list that repeats an item. Texts and numbers are made different, because some schemas require unique items."""
    if isinstance(item, str):
        return [item if index == 0 else f"{index}{item}" for index in range(length)]
    if isinstance(item, int | float) and not isinstance(item, bool):
        return [item + index for index in range(length)]
    return [copy.deepcopy(item) for _ in range(length)]

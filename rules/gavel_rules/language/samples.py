"""Values to try: for a JSON Schema, for a declared type, near the constants of the conditions that read them.

Nothing here is random: the same schema and the same conditions give the same values, the plainest ones first. Nothing here is
relied on either: whoever asks checks what comes against the schema, and a poor guess costs a case, never an answer.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from typing import Any, Final

from gavel_rules.language.constraints import Budget
from gavel_rules.language.sample_hints import ITEMS_MAX, NO_HINTS, Hints
from gavel_rules.language.schema import resolve
from gavel_rules.values import INTEGER_MAX, size_of

# The moment at which cases happen if nothing else is asked of them: a Monday noon, in UTC.
BASE_MOMENT: Final = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
# The step beside a threshold, where numbers are not whole.
STEP: Final = 0.01

VALUES_MAX: Final = 64
TEXT_LENGTH_MAX: Final = 5_000
VALUE_SIZE_MAX: Final = 16_000  # see `size_of`
PATTERN_DEPTH_MAX: Final = 32
SCHEMA_DEPTH_MAX: Final = 8
CHOICES_MAX: Final = 8
PARTS_MAX: Final = 4  # texts that are put together, each with each
# Steps of a Budget: to look at a part of a schema, and to make and compare each part of a value.
_PART_STEPS: Final = 5
_VALUE_STEPS: Final = 2


def resolved(part: object, root: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its reference followed and its `allOf` taken in, as far as one level says."""
    if not isinstance(part, dict):
        return {}
    schema = dict(part)
    for _ in range(SCHEMA_DEPTH_MAX):
        reference = schema.pop("$ref", None)
        if reference is None:
            break
        target = resolve(root, reference)
        schema = {**(target if isinstance(target, dict) else {}), **schema}
    for also in schema.pop("allOf", ()):
        schema = {**resolved(also, root), **schema}
    return schema


class Sampler:
    """Gives values for the parts of one schema, plain ones first, with those that conditions ask about.

    Once the budget is spent it gives no more.
    """

    def __init__(self, root: Mapping[str, Any], hints: Mapping[str, Hints], budget: Budget) -> None:
        self._root = root
        self._hints = hints
        self._budget = budget

    def values(self, part: object, path: str, depth: int = 0) -> list[object]:
        """Return values to try for a schema's part. Not every one need be valid."""
        return list(islice(unique(self._affordable(self._tried(part, path, depth))), VALUES_MAX)) if self._budget.take(_PART_STEPS) else []

    def _affordable(self, values: Iterable[object]) -> Iterator[object]:
        for value in values:
            if not self._budget.take(_VALUE_STEPS * size_of(value)):
                break
            yield value

    def _tried(self, part: object, path: str, depth: int) -> Iterator[object]:
        schema = resolved(part, self._root)
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
                    yield from self.values({**schema, **resolved(branch, self._root)}, path, depth + 1)
            types = schema.get("type", "string")
            for type_ in types if isinstance(types, list) else [types]:
                yield from self._of_type(type_, schema, path, depth)

    def _of_type(self, type_: object, schema: dict[str, Any], path: str, depth: int) -> Iterable[object]:
        hints = self._hints.get(path, NO_HINTS)
        match type_:
            case "string":
                return _texts(schema, hints)
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
        for length in unique([least, *(n + by for n in hints.lengths for by in (-1, 0, 1)), least + 1]):
            if isinstance(length, int) and 0 <= length <= ITEMS_MAX and size_of(items[0]) * length <= VALUE_SIZE_MAX:
                yield _repeated(items[0], length)
        for item in items:
            yield _repeated(item, max(least, 1))
        for item in items[1:]:
            yield [items[0], item]
            for length in hints.lengths:
                if size_of(items[0]) * length <= VALUE_SIZE_MAX:
                    yield from ([item, *_repeated(items[0], length + by - 1)] for by in (-1, 0, 1) if length + by >= 1)

    def _objects(self, schema: dict[str, Any], hints: Hints, path: str, depth: int) -> Iterator[object]:
        properties = schema.get("properties", {})
        if depth >= SCHEMA_DEPTH_MAX:
            return
        plain = {
            name: values[0]
            for name in schema.get("required", ())
            if (values := self.values(properties.get(name, {}), f"{path}.{name}", depth + 1))
        }
        yield plain
        if not properties:
            for name in hints.constants:
                if isinstance(name, str):
                    for value in self.values(schema.get("additionalProperties", {}), f"{path}[]", depth + 1)[:8]:
                        yield {**plain, name: value}
            return
        # Every combination of what its fields may be, as far as that goes: a macro's body reads several fields of one element.
        variants: list[dict[str, object]] = [plain]
        for name, part in properties.items():
            options = self.values(part, f"{path}.{name}", depth + 1)[:6]
            more = [{**variant, name: option} for variant in variants for option in options]
            variants.extend(more[: 12 - len(variants)])
            yield from more


def unique(values: Iterable[object]) -> Iterator[object]:
    """Yield values each once; 1, 1.0 and true are three."""
    found: set[str] = set()
    for value in values:
        known = len(found)
        found.add(f"{type(value).__name__} {value!r}")
        if len(found) > known:
            yield value


def _repeated(item: object, length: int) -> list[object]:
    """Return a list of different items where it can: some schemas want them unique."""
    if isinstance(item, str):
        return [item if index == 0 else f"{index}{item}" for index in range(length)]
    if isinstance(item, int | float) and not isinstance(item, bool):
        return [item + index for index in range(length)]
    return [copy.deepcopy(item) for _ in range(length)]


def _numbers(schema: Mapping[str, Any], hints: Hints, whole: bool) -> Iterator[float]:
    bounds = [schema[name] for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in schema]
    tried: list[float] = [1, 0]
    for value in (*hints.constants, *bounds):
        if isinstance(value, int | float):
            tried.extend(near(value, whole))
    multiple = schema.get("multipleOf")
    if multiple and max(map(abs, tried)) / multiple < INTEGER_MAX:
        tried = [multiple, *tried, *(math.floor(value / multiple) * multiple for value in tried)]
        tried.extend([value + multiple for value in tried])
    if not hints.constants:
        tried.extend((-1, 1000) if whole else (-1, 0.5, 1000))
    for value in tried:
        if (
            value >= schema.get("minimum", value)
            and value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
            and abs(value) <= INTEGER_MAX
        ):
            yield value


def near(value: float, whole: bool) -> tuple[float, ...]:
    """Return a threshold with what lies beside it."""
    if whole:
        return (math.floor(value), math.floor(value) + 1, math.ceil(value) - 1)
    return (value, plain(value + STEP), plain(value - STEP))


def plain(value: float) -> float:
    """Return a number without the dust of binary fractions: 0.91 rather than 0.9100000000000001."""
    return round(value, 9)


def _texts(schema: Mapping[str, Any], hints: Hints) -> Iterator[str]:
    least = int(schema.get("minLength", 0))
    if least > TEXT_LENGTH_MAX:
        return
    tried = ["a", "b", ""]
    shaped = matching(schema["pattern"]) if "pattern" in schema else []
    tried[:0] = [*(_moments(hints) if hints.moments else ()), *shaped]
    constants = [constant for constant in hints.constants if isinstance(constant, str)]
    tried.extend(constants)
    for constant in constants if hints.parts else ():
        tried.extend((f"{constant}a", f"a{constant}", f"a{constant}a", constant.upper(), constant.lower()))
        samples = matching(constant)
        tried.extend((*samples, *(f"{sample} " for sample in samples)))
        # Within the shape that the schema wants: with another beginning, or another end.
        for text in (constant, *samples):
            tried.extend(f"{text}{whole[len(text) :]}" for whole in shaped)
            tried.extend(f"{whole[: -len(text)]}{text}" for whole in shaped if text)
    for length in hints.lengths:
        tried.extend("a" * (length + by) for by in (-1, 0, 1))
    if hints.parts:
        tried.extend(_joined(constants[:PARTS_MAX], hints.lengths))
    for tried_text in tried:
        text = tried_text.ljust(least, "a")
        if len(text) <= min(schema.get("maxLength", TEXT_LENGTH_MAX), TEXT_LENGTH_MAX):
            yield text


def _joined(parts: list[str], lengths: Iterable[int]) -> Iterator[str]:
    """Yield texts that begin with one part and end with another, also of the lengths that are asked for."""
    for beginning, end in product(parts, parts):
        if beginning != end:
            yield beginning + end
        for length in lengths:
            yield from (beginning + "a" * (length + by - len(beginning) - len(end)) + end for by in (-1, 0, 1))


def _moments(hints: Hints) -> Iterator[str]:
    """Yield times around the base moment, as text: by the durations that conditions name, and by some more."""
    spans = [timedelta(), timedelta(days=1), timedelta(days=400)]
    spans.extend(span for constant in hints.constants if isinstance(constant, str) and (span := _duration(constant)) is not None)
    for span in spans:
        for by in (timedelta(), timedelta(seconds=1), timedelta(seconds=-1)):
            for away in (by - span, by + span):
                with suppress(OverflowError):  # beyond the years that there are
                    yield (BASE_MOMENT + away).isoformat().replace("+00:00", "Z")


def _duration(text: str) -> timedelta | None:
    """Return what CEL's duration() makes of a text such as "1h30m", None for another text."""
    parts = re.findall(r"([0-9.]+)(h|ms|m|s)", text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        return None
    try:
        return sum((timedelta(milliseconds=float(number) * _UNIT_MS[unit]) for number, unit in parts), timedelta())
    except (ValueError, OverflowError):
        return None


_UNIT_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def moments_named(constants: Iterable[object]) -> Iterator[datetime]:
    """Yield the moments that constants name: times in text, and the beginnings of years."""
    for constant in constants:
        if isinstance(constant, str) and re.match(r"\d{4}-\d\d-\d\dT", constant):
            try:
                moment = datetime.fromisoformat(constant)
            except ValueError:
                continue
            if moment.tzinfo is not None:
                yield moment
        elif isinstance(constant, int) and 1970 < constant < 2100:
            yield datetime(constant, 1, 1, tzinfo=UTC)


def matching(pattern: str) -> list[str]:
    """Return texts that a regular expression matches, each by other choices in it; none where it is not understood."""
    try:
        return list(dict.fromkeys(_Pattern(pattern, choice).text() for choice in range(CHOICES_MAX)))
    except (IndexError, ValueError):
        return []


class _Pattern:
    """Reads a regular expression and writes a plain text that it matches: of alternatives the n-th, of repetitions the fewest."""

    def __init__(self, pattern: str, choice: int) -> None:
        self._pattern = pattern
        self._choice = choice
        self._at = 0
        self._depth = 0

    def text(self) -> str:
        text = self._alternatives()
        if self._at < len(self._pattern):
            raise ValueError(self._pattern)
        return text

    def _peek(self) -> str:
        return self._pattern[self._at] if self._at < len(self._pattern) else ""

    def _next(self) -> str:
        self._at += 1
        return self._pattern[self._at - 1]

    def _alternatives(self) -> str:
        self._depth += 1
        if self._depth > PATTERN_DEPTH_MAX:
            raise ValueError(self._pattern)
        texts = [self._sequence()]
        while self._peek() == "|":
            self._next()
            texts.append(self._sequence())
        self._depth -= 1
        return texts[self._choice % len(texts)]

    def _sequence(self) -> str:
        text = ""
        while self._peek() not in ("", "|", ")"):
            one = self._one()
            repetitions = self._repetitions()
            if len(text) + len(one) * repetitions > TEXT_LENGTH_MAX:
                raise ValueError(self._pattern)
            text += one * repetitions
        return text

    def _one(self) -> str:
        character = self._next()
        if character == "(":
            opening = re.compile(r"\?(?:P?<\w+>|[a-zA-Z]*:)").match(self._pattern, self._at)
            if opening is not None:
                self._at = opening.end()
            elif self._peek() == "?":
                raise ValueError(self._pattern)
            inner = self._alternatives()
            if self._next() != ")":
                raise ValueError(self._pattern)
            return inner
        if character == "[":
            return self._class()
        if character == "\\":
            return _ESCAPED.get(escaped := self._next(), escaped)
        return {".": "a", "^": "", "$": ""}.get(character, character)

    def _class(self) -> str:
        negated = self._peek() == "^"
        self._at += negated
        members: list[tuple[str, str]] = []
        while not members or self._peek() != "]":
            first = self._member()
            last = first
            if self._peek() == "-" and self._pattern[self._at + 1] != "]":
                self._next()
                last = self._member()
            members.append((first, last))
        self._next()
        if not negated:
            return members[self._choice % len(members)][0]
        return next((one for one in "a1 _-A." if not any(first <= one <= last for first, last in members)), "§")

    def _member(self) -> str:
        character = self._next()
        return _ESCAPED.get(escaped := self._next(), escaped) if character == "\\" else character

    def _repetitions(self) -> int:
        least = 1
        match self._peek():
            case "*" | "?":
                self._next()
                least = 0
            case "+":
                self._next()
            case "{":
                counted = re.compile(r"\{(\d+)(?:,\d*)?\}").match(self._pattern, self._at)
                if counted is None:
                    return least
                least = min(int(counted[1]), TEXT_LENGTH_MAX)
                self._at = counted.end()
            case _:
                return least
        if self._peek() in ("?", "+"):  # lazy or possessive: the same texts
            self._next()
        return least


_ESCAPED: Final = {"d": "0", "w": "a", "s": " ", "b": "", "A": "", "z": "", "n": "\n", "t": "\t", "D": "a", "W": " ", "S": "a"}

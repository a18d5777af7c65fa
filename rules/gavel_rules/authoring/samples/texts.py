"""Sample texts for a JSON Schema of type string: plain ones, the constants of conditions and their variations, times, lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

from gavel_rules.authoring.samples.hints import TEXT_LENGTH_MAX, Hints
from gavel_rules.authoring.samples.patterns import matching_texts

# The time of a sample case by default: a Monday noon in UTC.
BASE_TIME: Final = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
PARTS_MAX: Final = 4  # constants that are concatenated with each other

_UNIT_MS: Final = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def sample_texts(schema: Mapping[str, Any], hints: Hints) -> Iterator[str]:
    """Yield texts to try for a schema, the plainest first. Their lengths fit the schema; not all need be valid."""
    least = int(schema.get("minLength", 0))
    if least > TEXT_LENGTH_MAX:
        return
    texts = ["a", "b", ""]
    of_pattern = matching_texts(schema["pattern"]) if "pattern" in schema else []
    texts[:0] = [*(_times(hints) if hints.is_time else ()), *of_pattern]
    constants = [constant for constant in hints.constants if isinstance(constant, str)]
    texts.extend(constants)
    for constant in constants if hints.beyond_equality else ():
        texts.extend((f"{constant}a", f"a{constant}", f"a{constant}a", constant.upper(), constant.lower()))
        matches = matching_texts(constant)
        texts.extend((*matches, *(f"{match} " for match in matches)))
        # The constant as beginning or end of a text that has the schema's pattern.
        for text in (constant, *matches):
            texts.extend(f"{text}{whole[len(text) :]}" for whole in of_pattern)
            texts.extend(f"{whole[: -len(text)]}{text}" for whole in of_pattern if text)
    for length in hints.lengths:
        texts.extend("a" * (length + offset) for offset in (-1, 0, 1))
    if hints.beyond_equality:
        texts.extend(_concatenate(constants[:PARTS_MAX], hints.lengths))
    for text in texts:
        long_enough = text.ljust(least, "a")
        if len(long_enough) <= min(schema.get("maxLength", TEXT_LENGTH_MAX), TEXT_LENGTH_MAX):
            yield long_enough


def constant_times(constants: Iterable[object]) -> Iterator[datetime]:
    """Yield the times among constants: RFC 3339 texts, and integers that may be years, each as the first moment of the year."""
    for constant in constants:
        if isinstance(constant, str) and re.match(r"\d{4}-\d\d-\d\dT", constant):
            try:
                time = datetime.fromisoformat(constant)
            except ValueError:
                continue
            if time.tzinfo is not None:
                yield time
        elif isinstance(constant, int) and 1970 < constant < 2100:
            yield datetime(constant, 1, 1, tzinfo=UTC)


def _concatenate(parts: list[str], lengths: Iterable[int]) -> Iterator[str]:
    """Yield texts that begin with one part and end with another, also padded to lengths near `lengths`."""
    for beginning, end in product(parts, parts):
        if beginning != end:
            yield beginning + end
        for length in lengths:
            yield from (beginning + "a" * (length + offset - len(beginning) - len(end)) + end for offset in (-1, 0, 1))


def _times(hints: Hints) -> Iterator[str]:
    """Yield times as text: the base time shifted by the durations among the constants, and by some others."""
    spans = [timedelta(), timedelta(days=1), timedelta(days=400)]
    spans.extend(span for constant in hints.constants if isinstance(constant, str) and (span := _duration(constant)) is not None)
    for span in spans:
        for offset in (timedelta(), timedelta(seconds=1), timedelta(seconds=-1)):
            for distance in (offset - span, offset + span):
                with suppress(OverflowError):  # beyond the years of the calendar
                    yield (BASE_TIME + distance).isoformat().replace("+00:00", "Z")


def _duration(text: str) -> timedelta | None:
    """Return the value of CEL's duration() for a text such as "1h30m"; None for any other text."""
    parts = re.findall(r"([0-9.]+)(h|ms|m|s)", text)
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        return None
    try:
        return sum((timedelta(milliseconds=float(number) * _UNIT_MS[unit]) for number, unit in parts), timedelta())
    except (ValueError, OverflowError):
        return None

"""Sample texts for a JSON Schema of type string: forms that functions read, plain ones, constants and their variations, lengths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import product
from typing import Any, Final

from gavel_rules.authoring.samples.hints import TEXT_LENGTH_MAX, Hints
from gavel_rules.authoring.samples.patterns import matching_texts
from gavel_rules.authoring.samples.text_forms import texts_of_forms

PARTS_MAX: Final = 4  # constants that are concatenated with each other


def sample_texts(schema: Mapping[str, Any], hints: Hints) -> Iterator[str]:
    """Yield texts to try for a schema, the plainest first. Their lengths fit the schema; not all need be valid."""
    least = int(schema.get("minLength", 0))
    if least > TEXT_LENGTH_MAX:
        return
    texts = ["a", "b", ""]
    of_pattern = matching_texts(schema["pattern"]) if "pattern" in schema else []
    texts[:0] = [*texts_of_forms(hints.forms, hints.constants), *of_pattern]
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

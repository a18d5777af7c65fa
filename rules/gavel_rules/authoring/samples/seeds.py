"""Seeds of a search: cases that are known from elsewhere, such as a suite, and the values in them.

A search picks values near thresholds, and values that functions of texts accept. It does not find every text that a regular expression
matches, or that a call parses. The values of seeds are tried too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gavel_rules.language.engines.case import Case


class Seed(NamedTuple):
    """A case of an action, by the name that its author gave it. `params` are JSON values, those of `case` are typed."""

    name: str
    action_type: str
    params: Mapping[str, object]
    case: Case


def seed_values(seeds: Sequence[Seed], path: str) -> list[object]:
    """Return the values of a path of params or facts in seeds. The elements of a list have its path and "[]"."""
    root, *steps = path.replace("[]", ".[]").split(".")
    if root not in ("params", "facts"):
        return []
    return [value for seed in seeds for value in _values_at(seed.params if root == "params" else seed.case.facts, steps)]


def _values_at(value: object, steps: Sequence[str]) -> Iterator[object]:
    if not steps:
        yield value
    elif steps[0] == "[]":
        for item in value if isinstance(value, list) else ():
            yield from _values_at(item, steps[1:])
    elif isinstance(value, Mapping) and steps[0] in value:
        yield from _values_at(value[steps[0]], steps[1:])

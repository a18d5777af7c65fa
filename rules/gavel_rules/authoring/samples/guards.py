"""Guards, tested on sample cases. A guard is the part of a condition that only CEL evaluates, so symbolic analysis cannot see into it.

For a number or a time that a guard reads, bisection finds the values at which its outcome flips: samples are worth taking there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from gavel_rules.authoring.samples.attributes import BASE_TIME_MS, NOW
from gavel_rules.authoring.samples.builder import Assignment, CaseBuilder
from gavel_rules.authoring.samples.hints import NO_HINTS
from gavel_rules.authoring.samples.texts import constant_times
from gavel_rules.authoring.samples.values import neighbours, round_fraction, value_key
from gavel_rules.errors import CaseError
from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.engines.case import Case, CaseReader
from gavel_rules.language.engines.cel import Program, guard_source
from gavel_rules.language.engines.lowering import Guard

FLIPS_MAX: Final = 32
GUARD_STEPS: Final = 10  # of a Budget, to test a guard once
_HOUR_MS: Final = 3_600_000
# Years whose times are tested: half a day around them is still a time that a log can record.
_YEAR_MIN: Final = 1971
_YEAR_MAX: Final = 9998


class GuardProbe:
    """Tests one guard. `paths` are the paths that it reads. Outcomes are cached."""

    def __init__(self, guard: Guard, environment: Environment, builder: CaseBuilder) -> None:
        self.source = guard.source
        tree = environment.tree(guard.source)
        values = dict(find_variables(tree, environment.types))
        present = [*find_presence_tests(tree), *guard.required_paths]
        self.paths = frozenset((*values, *present))
        self._builder = builder
        self._order = sorted(self.paths)
        self._reader = CaseReader(values.items(), present)
        self._program = Program(environment, [guard_source(guard)])
        self._outcomes: dict[tuple[str, ...], bool | None] = {}
        self._boundaries: dict[str, list[float]] = {}

    def outcome(self, assignment: Assignment) -> bool | None:
        """Return how the guard comes out for these values of its paths; None if it fails, or if no case has them."""
        values = {path: assignment[path] for path in self._order}
        key = tuple(map(value_key, values.values()))
        if key not in self._outcomes:
            self._builder.budget.take(GUARD_STEPS)
            sample = self._builder.build(values)
            self._outcomes[key] = self._evaluate(sample.case) if sample is not None else None
        return self._outcomes[key]

    def boundaries(self, path: str) -> list[float]:
        """Return the flips of a path while the other paths have their plainest values."""
        if path not in self._boundaries:
            self._boundaries[path] = self.flips(path, {})
        return self._boundaries[path]

    def flips(self, path: str, assignment: Assignment) -> list[float]:
        """Return the values of a number or time on both sides of each change of the outcome.

        The other paths have the values of `assignment`, or else their plainest.
        """
        builder = self._builder
        type_ = builder.action.environment.types.get(path)
        if builder.budget.exhausted or type_ is None or type_.kind not in ("int", "double", "timestamp"):
            return []
        whole = type_.kind != "double"
        points = _time_points(builder.hints.get(path, NO_HINTS).constants) if path == NOW else _number_points(builder.values(path), whole)
        plainest = {other: values[0] for other in self.paths if other != path and (values := builder.values(other))}
        if self.paths > {*plainest, *assignment, path}:
            return []  # a path that the guard reads has no known value
        return find_flips(lambda value: self.outcome({**plainest, **assignment, path: value}), points, whole)

    def _evaluate(self, case: Case) -> bool | None:
        try:
            answers = self._program.evaluate_all(self._reader.read(case))
        except CaseError:
            return None
        return answers[0] if answers is not None and isinstance(answers[0], bool) else None


def find_flips(outcome: Callable[[float], bool | None], points: Sequence[float], is_integer: bool) -> list[float]:
    """Return the two values next to each change of the outcome: the last one before it, and the first one after. `points` ascend."""
    outcomes = [(point, result) for point in points for result in [outcome(point)] if result is not None]
    flips: list[float] = []
    for (low, before), (high, after) in pairwise(outcomes):
        if before is not after:
            flips.extend(_bisect(outcome, low, high, before, is_integer))
        if len(flips) >= FLIPS_MAX:
            break
    return flips


def _bisect(outcome: Callable[[float], bool | None], low: float, high: float, before: bool, is_integer: bool) -> Iterator[float]:
    while (high - low > 1) if is_integer else (high - low > 1e-9 * max(1.0, abs(high))):
        middle = (low + high) // 2 if is_integer else (low + high) / 2
        if outcome(middle) is before:
            low = middle
        else:
            high = middle
    if not is_integer:
        yield from neighbours(round_fraction(round(high, 6)), is_integer)
    yield from (low, high)


def _number_points(values: Sequence[object], is_integer: bool) -> list[float]:
    """Return numbers to test, ascending: sample values, multiples of them, and powers of ten."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    points = {*numbers, *(factor * value for value in numbers for factor in (0.5, 2, 10, 100)), 1, 10, 100, 1_000, 100_000, 1_000_000}
    return sorted({math.floor(point) for point in points} if is_integer else points)


def _time_points(constants: Sequence[object]) -> list[float]:
    """Return times to test, ascending: every hour of a week, every day of a year, and half a day around each constant."""
    hours = {BASE_TIME_MS + _HOUR_MS * hour for hour in range(-12, 156)}
    days = {BASE_TIME_MS + 24 * _HOUR_MS * day for day in range(-5, 362)}
    around_constants = {
        int(time.timestamp() * 1000) + offset * _HOUR_MS
        for time in constant_times(constants)
        if _YEAR_MIN <= time.year <= _YEAR_MAX
        for offset in (-12, 12)
    }
    return sorted({*hours, *days, *around_constants})

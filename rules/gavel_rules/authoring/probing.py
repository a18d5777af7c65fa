"""Guards, asked by trying: what CEL alone can say is opaque to every other analysis.

A question is one guard with what it reads. It answers for a case; and for a number or a time that it reads, bisection finds
where it changes its mind, which is where cases are worth making.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from gavel_rules.errors import CaseError
from gavel_rules.language.attributes import BASE_MS
from gavel_rules.language.case import Case, Reader
from gavel_rules.language.conditions import Environment
from gavel_rules.language.lowering import Guard
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.reference import Program, guard_source
from gavel_rules.language.samples import moments_named, near, plain

FLIPS_MAX: Final = 32
_HOUR_MS: Final = 3_600_000
_YEARS_ASKED: Final = (1971, 9998)  # within what a log can record, and half a day beside it


class Question:
    """A guard that can be asked about a case. `paths` is what it reads, `order` the same in an order that stays.

    `answers` and `boundaries` are what is known already, by the values of what it reads, and by path.
    """

    def __init__(self, guard: Guard, environment: Environment) -> None:
        self.source = guard.source
        tree = environment.tree(guard.source)
        read = dict(reads(tree, environment.types))
        tested = [*presences(tree), *guard.needs]
        self.paths = frozenset((*read, *tested))
        self.order = sorted(self.paths)
        self.answers: dict[tuple[str, ...], bool | None] = {}
        self.boundaries: dict[str, list[float]] = {}
        self._reader = Reader(read.items(), tested)
        self._program = Program(environment, [guard_source(guard)])

    def answer(self, case: Case) -> bool | None:
        """Return how the guard comes out; None where it errs or has nothing to read."""
        try:
            answers = self._program.together(self._reader.values(case))
        except CaseError:
            return None
        return answers[0] if answers is not None and isinstance(answers[0], bool) else None


def flips(ask: Callable[[float], bool | None], points: Sequence[float], whole: bool) -> list[float]:
    """Return the values on both sides of each change of the answer between ascending points, as near as makes sense."""
    answers = [(point, answer) for point in points for answer in [ask(point)] if answer is not None]
    found: list[float] = []
    for (low, before), (high, after) in pairwise(answers):
        if before is not after:
            found.extend(_bisected(ask, low, high, before, whole))
        if len(found) >= FLIPS_MAX:
            break
    return found


def _bisected(ask: Callable[[float], bool | None], low: float, high: float, before: bool, whole: bool) -> Iterator[float]:
    while (high - low > 1) if whole else (high - low > 1e-9 * max(1.0, abs(high))):
        middle = (low + high) // 2 if whole else (low + high) / 2
        if ask(middle) is before:
            low = middle
        else:
            high = middle
    if not whole:
        yield from near(plain(round(high, 6)), whole)
    yield from (low, high)


def numbers_to_ask(known: Sequence[object], whole: bool) -> list[float]:
    """Return numbers worth looking at, ascending: those that conditions name, and between and beyond them."""
    numbers = [value for value in known if isinstance(value, int | float) and not isinstance(value, bool)]
    points = {*numbers, *(by * value for value in numbers for by in (0.5, 2, 10, 100)), 1, 10, 100, 1_000, 100_000, 1_000_000}
    return sorted({math.floor(point) for point in points} if whole else points)


def moments_to_ask(constants: Sequence[object]) -> list[float]:
    """Return times worth looking at, ascending: every hour of a week, every day of a year, and what conditions name."""
    hours = {BASE_MS + _HOUR_MS * hour for hour in range(-12, 156)}
    days = {BASE_MS + 24 * _HOUR_MS * day for day in range(-5, 362)}
    named = {
        int(moment.timestamp() * 1000) + by * _HOUR_MS
        for moment in moments_named(constants)
        if _YEARS_ASKED[0] <= moment.year <= _YEARS_ASKED[1]
        for by in (-12, 12)
    }
    return sorted({*hours, *days, *named})

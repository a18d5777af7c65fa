"""The numbers with which the expressions of an action compare its counters, and the numbers of events that reach them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gavel_rules.authoring.samples.hints import collect_hints
from gavel_rules.authoring.suites.histories.counter_versions import CounterVersions
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.counters.counter import SUM

THRESHOLDS_MAX: Final = 16  # of one counter


class Thresholds:
    """The constants with which expressions compare counters, by name."""

    def __init__(self, expressions: Iterable[ScopedExpression]) -> None:
        found: dict[str, dict[float, None]] = {}
        for environment, expression in expressions:
            hints = collect_hints(expression.tree, environment.types)
            for read in environment.counter_reads.all():
                if read.variable in hints:
                    found.setdefault(read.counter, {}).update(dict.fromkeys(_numbers(hints[read.variable].constants)))
        self._by_counter = {name: tuple(constants) for name, constants in found.items()}

    def of_counter(self, name: str, added: Iterable[object] = ()) -> tuple[float, ...]:
        """Return what a counter may be compared with: constants, numbers `added` in a sample, and constants less these numbers."""
        fixed, own = self._by_counter.get(name, ()), [*_numbers(added)]
        found = [*fixed, *own, *(constant - number for constant in fixed for number in own)]
        return tuple(dict.fromkeys(found))[:THRESHOLDS_MAX]

    def amounts(self, counters: Mapping[str, CounterVersions]) -> dict[str, list[float]]:
        """Return amounts, by param, with which the counters that add the param up reach their thresholds.

        They are the thresholds; halves of them, because two halves fit under a limit, and with another amount in place of one they do not;
        and more than the thresholds. If a scale was edited, the halves are not whole: one of them may be rounded up.
        """
        amounts: dict[str, list[float]] = {}
        for name, versions in counters.items():
            steps = (0.5, -0.5) if versions.before.scale != versions.after.scale else (0,)
            thresholds = self.of_counter(name)
            halves = [threshold / 2 + step for threshold in thresholds for step in steps]
            above = [math.floor(threshold) + 1.0 for threshold in thresholds]
            params = {param for counter in versions if counter.aggregate == SUM for param in _params(counter.expressions.amount)}
            for param in sorted(params):
                known = amounts.setdefault(param, [])
                known.extend(number for number in (*thresholds, *halves, *above) if number not in known)
        return amounts


def counts_around(ratios: Collection[float], count_max: int) -> list[int]:
    """Return numbers of equal events whose total reaches thresholds, exceeds them, and stays below. `ratios`: threshold to amount."""
    around = [*map(math.ceil, ratios), *(math.floor(ratio) + 1 for ratio in ratios), *(math.ceil(ratio) - 1 for ratio in ratios)]
    return [count for count in dict.fromkeys(around) if 0 < count <= count_max]


def _params(scoped: ScopedExpression | None) -> Iterable[str]:
    """Yield the params that an expression reads."""
    for name in sorted(scoped.names()) if scoped is not None else ():
        root, _, param = name.partition(".")
        if root == "params" and "." not in param:
            yield param


def _numbers(values: Iterable[object]) -> Iterable[float]:
    return (float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool))

"""The search for a case within symbolic constraints.

Values are picked near the thresholds of each path. Relations between two values, and guards, are settled by trial, path by path. If that
finds nothing, a second pass also tries the values at which guards flip, given the values so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import ABSENT, VALUE_STEPS, Assignment, CaseBuilder, SampleCase
from gavel_rules.authoring.samples.constraints import Constraints, Domain
from gavel_rules.authoring.samples.guards import GuardProbe
from gavel_rules.authoring.samples.values import deduplicate, neighbours, round_fraction
from gavel_rules.values import size_of

TRIALS_MAX: Final = 1_500  # values tried in one set of cases


class _Check(NamedTuple):
    """A requirement on a case that needs the values of these paths."""

    paths: frozenset[str]
    passes: Callable[[Assignment], bool]
    probe: GuardProbe | None = None


class CaseSearch:
    """Searches for cases of one action. `universe` is the set of all its cases."""

    def __init__(self, builder: CaseBuilder, universe: Constraints) -> None:
        self._builder = builder
        self._universe = universe

    def options(self, path: str, constraints: Constraints, more: Iterable[object] = ()) -> list[object]:
        """Return values of `path` that the constraints allow, to try in this order: near its thresholds, others and `more`, ABSENT."""
        steps = constraints.optional.get(path, ())
        if any(constraints.present.get(step) is False for step in steps):
            return [ABSENT]
        domain = constraints.domain(path)
        values: list[object] = []
        for edge in domain.edges:
            values.extend(neighbours(edge, domain.integer) if isinstance(edge, int | float) and not isinstance(edge, bool) else [edge])
        if domain.allowed is not None:
            values.extend(sorted(domain.allowed, key=repr))
        if not domain.edges and domain.allowed is None and path not in constraints.present:
            values = [*self._builder.values(path), *more]
        else:
            values.extend([*more, *self._builder.values(path)])
            if math.isfinite(domain.low) and math.isfinite(domain.high):
                values.extend([round_fraction((domain.low + domain.high) / 2), (domain.low + domain.high) / 2])
            values.extend(
                value for bound in (domain.low, domain.high) if math.isfinite(bound) for value in neighbours(bound, domain.integer)
            )
        if not self._builder.budget.take(VALUE_STEPS * sum(map(size_of, values))):
            return []
        options = [value for value in deduplicate(values) if self._is_allowed(path, value, domain)]
        if steps and not all(constraints.present.get(step) for step in steps):
            options.append(ABSENT)
        return options

    def find(self, constraints: Constraints, probes: Sequence[GuardProbe]) -> SampleCase | None:
        """Return a case within constraints; None if none was found. `probes` are those of the constrained guards."""
        assignment: Assignment = {}
        paired = sorted({path for pair in constraints.pairs for path in pair})
        for path in sorted({*constraints.domains, *constraints.present}):
            domain = constraints.domains.get(path)
            if path not in paired and (path in constraints.present or domain is not self._universe.domains.get(path)):
                options = self.options(path, constraints)
                if not options:
                    return None
                assignment[path] = options[0]
        checks: list[_Check] = [_Check(frozenset(pair), partial(_compare, pair, signs)) for pair, signs in constraints.pairs.items()]
        checks.extend(
            _Check(probe.paths, partial(_comes_out, probe, constraints.guards[probe.source]), probe)
            for probe in sorted(probes, key=lambda probe: len(probe.paths))
        )
        if not checks:
            return self._builder.build(assignment)
        order = list(dict.fromkeys(path for check in checks for path in sorted(check.paths)))
        options_of = {path: self.options(path, constraints, self._suggestions(path, constraints, probes)) for path in order}
        trial = partial(self._try_options, assignment, order, options_of, checks)
        return trial(at_flips=False) or (trial(at_flips=True) if probes else None)

    def _is_allowed(self, path: str, value: object, domain: Domain) -> bool:
        if isinstance(value, str | bool | int | float) and value not in domain:
            return False
        return self._builder.fits(path, value)

    def _suggestions(self, path: str, constraints: Constraints, probes: Sequence[GuardProbe]) -> list[object]:
        """Return values of a path at the flips of guards, and near the values of the paths that it is compared with."""
        values: list[object] = [value for probe in probes if path in probe.paths for value in probe.boundaries(path)]
        for pair in constraints.pairs:
            if path in pair:
                values.extend(self._values_near(pair[0] if pair[1] == path else pair[1], constraints))
        return values

    def _values_near(self, path: str, constraints: Constraints) -> Iterator[object]:
        for value in self.options(path, constraints):
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield from neighbours(value, isinstance(value, int))
            elif value is not ABSENT:
                yield value

    def _try_options(
        self,
        start: Assignment,
        order: Sequence[str],
        options_of: Mapping[str, Sequence[object]],
        checks: Sequence[_Check],
        *,
        at_flips: bool,
    ) -> SampleCase | None:
        """Return the first case that passes all checks, trying the options path by path.

        With `at_flips`, also try the values at which guards flip, given the values so far: slower and finer.
        """
        assignment: Assignment = dict(start)
        due: list[list[_Check]] = [[] for _ in order]
        for check in checks:
            if check.paths:
                due[max(order.index(path) for path in check.paths)].append(check)
            elif not check.passes(assignment):
                return None  # a guard that reads nothing always comes out the same
        budget = Budget(TRIALS_MAX)

        def search(depth: int) -> SampleCase | None:
            if depth == len(order):
                return self._builder.build(assignment)
            path = order[depth]
            probes = [check.probe for check in due[depth] if check.probe is not None and len(check.paths) > 1] if at_flips else []
            for value in chain(options_of[path], *(probe.flips(path, dict(assignment)) for probe in probes)):
                if not budget.take() or not self._builder.budget.take(1 + 2 * len(due[depth])):
                    break
                assignment[path] = value
                if all(check.passes(assignment) for check in due[depth]):
                    sample = search(depth + 1)
                    if sample is not None:
                        return sample
            return None

        return search(0)


def _comes_out(probe: GuardProbe, outcome: bool, assignment: Assignment) -> bool:
    return probe.outcome(assignment) is outcome


def _compare(pair: tuple[str, str], signs: frozenset[int], assignment: Assignment) -> bool:
    """Return whether two values are present and compare with one of these signs. Only numbers are ordered."""
    left: Any = assignment[pair[0]]
    right: Any = assignment[pair[1]]
    if left is ABSENT or right is ABSENT:
        return False
    if left == right:
        return 0 in signs
    return (1 if isinstance(left, int | float) and left > right else -1) in signs

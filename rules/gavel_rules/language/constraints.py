"""What a case must be like for some conditions to come out as wanted: small symbolic sets of cases, and proofs that one is empty.

A lowered condition is a disjunction of conjunctions of atoms (`lowering`). `Constraints` is the set of cases in which some atoms
all hold: an interval or a choice for each value, which optional values are there, how pairs of values compare, and how guards
come out. Adding an atom gives a smaller set, or None where it is certainly empty. `solutions` walks the alternatives of
several conditions at once and yields the sets that are left.

Emptiness is the only claim made here, and it is sound: where a set is empty no case is in it. A set that is not known to be
empty may still be: guards are opaque, and a schema may say more than is looked at. `cases` finds out by making the case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gavel_rules.language.lowering import GUARD, PRESENCE, Atom, Conjunction, Formula

# Up to so many integers in an interval are looked at one by one.
_ENUMERATED_MAX: Final = 64

Scalar = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that one path may have. `edges` are what it has been compared with: where a case is worth making.

    `allowed` None: every value within the bounds. Bounds are for numbers alone.
    """

    allowed: frozenset[Scalar] | None = None
    excluded: frozenset[Scalar] = frozenset()
    low: float = -math.inf
    low_open: bool = False
    high: float = math.inf
    high_open: bool = False
    integer: bool = False
    edges: tuple[Scalar, ...] = ()

    def __contains__(self, value: object) -> bool:
        if isinstance(value, str | bool):
            return value not in self.excluded and (self.allowed is None or value in self.allowed)
        if not isinstance(value, int | float) or value in self.excluded or (self.integer and value != int(value)):
            return False
        above = value > self.low or (value == self.low and not self.low_open)
        below = value < self.high or (value == self.high and not self.high_open)
        return above and below and (self.allowed is None or value in self.allowed)

    def compared(self, operator: str, value: Scalar) -> Domain | None:
        """Return the values that also stand in this relation to `value` (operators as in `Atom`); None if there are none."""
        return self._narrowed(operator, value, (*self.edges, value) if value not in self.edges else self.edges)

    def bounded(self, operator: str, value: float) -> Domain | None:
        """Return the same as `compared`, for a bound that is no threshold of its own."""
        return self._narrowed(operator, value, self.edges)

    def _narrowed(self, operator: str, value: Scalar, edges: tuple[Scalar, ...]) -> Domain | None:
        match operator:
            case "":
                return replace(self, allowed=frozenset([value]), edges=edges) if value in self else None
            case "$neq":
                return replace(self, excluded=self.excluded | {value}, edges=edges)._or_none()
        assert not isinstance(value, str)  # noqa: S101  # the network orders numbers only
        if operator in ("$lt", "$lte"):
            is_open = operator == "$lt"
            if value < self.high or (value == self.high and is_open):
                return replace(self, high=value, high_open=is_open, edges=edges)._or_none()
        else:
            is_open = operator == "$gt"
            if value > self.low or (value == self.low and is_open):
                return replace(self, low=value, low_open=is_open, edges=edges)._or_none()
        return replace(self, edges=edges)

    def common(self, other: Domain) -> Domain | None:
        """Return the values that both have; None if there are none."""
        allowed = self.allowed if other.allowed is None else other.allowed if self.allowed is None else self.allowed & other.allowed
        narrow: Domain | None = replace(self, allowed=allowed, excluded=self.excluded | other.excluded)
        if narrow is not None and other.low > -math.inf:
            narrow = narrow.bounded("$gt" if other.low_open else "$gte", other.low)
        if narrow is not None and other.high < math.inf:
            narrow = narrow.bounded("$lt" if other.high_open else "$lte", other.high)
        return narrow._or_none() if narrow is not None else None

    def _or_none(self) -> Domain | None:
        if self.allowed is not None:
            return self if any(value in self for value in self.allowed) else None
        if self.low > self.high or (self.low == self.high and (self.low_open or self.high_open or self.low in self.excluded)):
            return None
        if self.integer and self.high - self.low <= _ENUMERATED_MAX:
            whole = range(math.ceil(self.low), math.floor(self.high) + 1)
            return self if any(value in self for value in whole) else None
        return self


_FREE: Final = Domain()
_FLAGS: Final = Domain(allowed=frozenset([True, False]))

# Which of "less", "equal", "greater" an operator leaves open between two values.
_SIGNS: Final[Mapping[str, frozenset[int]]] = {
    "": frozenset([0]),
    "$neq": frozenset([-1, 1]),
    "$lt": frozenset([-1]),
    "$lte": frozenset([-1, 0]),
    "$gt": frozenset([1]),
    "$gte": frozenset([0, 1]),
}

_OPERATORS: Final = {signs: operator for operator, signs in _SIGNS.items()}
_ALL_SIGNS: Final = frozenset([-1, 0, 1])

Pair = tuple[str, str]


def negated(atom: Atom) -> Atom:
    """Return the atom that holds where this one does not, if its values are there."""
    return atom._replace(operator=_OPERATORS[_ALL_SIGNS - _SIGNS[atom.operator]])


@dataclass(frozen=True, slots=True)
class Constraints:
    """A set of cases. `optional` names, for every path, the optional paths along it: it is there when all of these are."""

    optional: Mapping[str, tuple[str, ...]]
    domains: Mapping[str, Domain]
    present: Mapping[str, bool] = field(default_factory=dict)
    pairs: Mapping[Pair, frozenset[int]] = field(default_factory=dict)
    guards: Mapping[str, bool] = field(default_factory=dict)

    def with_all(self, conjunction: Conjunction) -> Constraints | None:
        """Return the cases of the set in which all the atoms hold as well; None when there is none."""
        constraints = self
        for atom in conjunction:
            narrowed = constraints._with(atom)
            if narrowed is None:
                return None
            constraints = narrowed
        return constraints._propagated() if constraints.pairs else constraints

    def work(self, conjunction: Conjunction) -> int:
        """Return what it takes to add a conjunction, in steps of a Budget: for each atom, what is known is copied."""
        known = len(self.domains) + len(self.present) + len(self.guards) + len(self.pairs)
        return 2 + len(conjunction) * (4 + (known + len(self.optional)) // 16) + 4 * len(self.pairs)

    def domain(self, path: str) -> Domain:
        """Return what values a path may have, if it is there."""
        return self.domains.get(path, _FREE)

    def _with(self, atom: Atom) -> Constraints | None:
        name = atom.left.name
        if not isinstance(atom.right, str):
            return self._with_pair(name, atom.operator, atom.right.name)
        value: Scalar = json.loads(atom.right)
        if atom.left.kind == GUARD:
            wanted = value is (atom.operator == "")
            if self.guards.get(name, wanted) is not wanted:
                return None
            return replace(self, guards={**self.guards, name: wanted})
        if atom.left.kind == PRESENCE:
            return self._with_presence(name, value is (atom.operator == ""))
        there = self._with_presence(name, True)
        if there is None:
            return None
        known = there.domains.get(name, _FLAGS if isinstance(value, bool) else _FREE)
        domain = known.compared(atom.operator, value)
        return replace(there, domains={**there.domains, name: domain}) if domain is not None else None

    def _with_presence(self, path: str, wanted: bool) -> Constraints | None:
        """Being there takes every optional step of the path. Being absent takes the last of them to be, at the least."""
        steps = self.optional.get(path, ())
        if not wanted:
            if not steps or self.present.get(steps[-1]) is True:
                return None
            below = {name: False for name, along in self.optional.items() if steps[-1] in along and name in along}
            if any(self.present.get(name) is True for name in below):
                return None
            return replace(self, present={**self.present, **below, steps[-1]: False})
        if any(self.present.get(step) is False for step in steps):
            return None
        if all(step in self.present for step in steps):
            return self
        return replace(self, present={**self.present, **dict.fromkeys(steps, True)})

    def _with_pair(self, left: str, operator: str, right: str) -> Constraints | None:
        there = self._with_presence(left, True)
        there = there._with_presence(right, True) if there is not None else None
        if there is None:
            return None
        signs = _SIGNS[operator]
        if left > right:
            left, right, signs = right, left, frozenset(-sign for sign in signs)
        if left == right:
            return there if 0 in signs else None
        signs &= there.pairs.get((left, right), signs)
        return replace(there, pairs={**there.pairs, (left, right): signs}) if signs else None

    def _propagated(self) -> Constraints | None:
        """Return the set with what each pair's relation says about the bounds of its two values."""
        domains = dict(self.domains)
        for (left, right), signs in self.pairs.items():
            of_left: Domain | None = domains.get(left, _FREE)
            of_right: Domain | None = domains.get(right, _FREE)
            assert of_left is not None  # noqa: S101  # for the type checker
            assert of_right is not None  # noqa: S101
            if signs == {0}:
                of_left = of_right = of_left.common(of_right)
            elif 1 not in signs:
                of_left, of_right = _ordered(of_left, of_right, 0 not in signs)
            elif -1 not in signs:
                of_right, of_left = _ordered(of_right, of_left, 0 not in signs)
            if of_left is None or of_right is None:
                return None
            domains[left], domains[right] = of_left, of_right
        return replace(self, domains=domains)


def _ordered(less: Domain, more: Domain, strictly: bool) -> tuple[Domain | None, Domain | None]:
    """Return two domains cut to where a value of the first can be below (or equal to) one of the second."""
    lesser = less.bounded("$lt" if strictly or more.high_open else "$lte", more.high) if more.high < math.inf else less
    greater = more.bounded("$gt" if strictly or less.low_open else "$gte", less.low) if less.low > -math.inf else more
    return lesser, greater


class Budget:
    """How much work a search may still do, in steps of about half a microsecond; what it takes out of `whole` has to be left there too.

    `spent` says that the search was stopped early, and so has proved nothing.
    """

    def __init__(self, steps: int, whole: Budget | None = None) -> None:
        self.spent = False
        self.taken = 0
        self._steps = steps
        self._whole = whole

    def take(self, steps: int = 1) -> bool:
        """Take steps for what is about to be done; False when none is left. The last piece of work may take more than there is."""
        enough = self.taken < self._steps and (self._whole is None or self._whole.take(steps))
        self.taken += steps
        self.spent = self.spent or not enough
        return enough


def solutions(formulas: Sequence[Formula], constraints: Constraints, budget: Budget) -> Iterator[Constraints]:
    """Yield sets of cases in which every formula holds. None at all, with budget left, proves that there is no such case."""
    if not formulas:
        yield constraints
        return
    for conjunction in formulas[0]:
        if not budget.take(constraints.work(conjunction)):
            return
        narrowed = constraints.with_all(conjunction)
        if narrowed is not None:
            yield from solutions(formulas[1:], narrowed, budget)

"""Symbolic sets of cases: the cases in which some conditions come out as wanted, and proofs that there are none.

A lowered condition is a disjunction of conjunctions of atoms (`engines.lowering`). `Constraints` is the set of cases in which some
atoms hold: a domain for each value, which optional values are present, how pairs of values compare, and how guards come out.
Adding an atom gives a smaller set, or None if it is certainly empty. `solve` walks the alternatives of several conditions at once.

The only claim made here is that a set is empty, and this claim is sound. A set may also be empty without a claim, because guards are opaque
and schemas have keywords that are not used here. `cases` finds out by building a case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.language.engines.lowering import GUARD, PRESENCE, Atom, Conjunction, Formula

# Largest interval of integers that is checked value by value.
_VALUES_MAX: Final = 64

Scalar = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Domain:
    """The values that one path may have. Bounds apply to numbers only; `allowed` None means every value within them.

    `edges` are the values that it was compared with: samples are taken next to them.
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

    def compare(self, operator: str, value: Scalar) -> Domain | None:
        """Return the values that also stand in this relation to `value` (operators as in `Atom`); None if there are none."""
        return self._narrow(operator, value, (*self.edges, value) if value not in self.edges else self.edges)

    def bound(self, operator: str, value: float) -> Domain | None:
        """Like `compare`, without adding `value` to the edges."""
        return self._narrow(operator, value, self.edges)

    def _narrow(self, operator: str, value: Scalar, edges: tuple[Scalar, ...]) -> Domain | None:
        match operator:
            case "":
                return replace(self, allowed=frozenset([value]), edges=edges) if value in self else None
            case "$neq":
                return replace(self, excluded=self.excluded | {value}, edges=edges)._or_none()
        assert not isinstance(value, str)  # noqa: S101  # Rete orders numbers only
        if operator in ("$lt", "$lte"):
            is_open = operator == "$lt"
            if value < self.high or (value == self.high and is_open):
                return replace(self, high=value, high_open=is_open, edges=edges)._or_none()
        else:
            is_open = operator == "$gt"
            if value > self.low or (value == self.low and is_open):
                return replace(self, low=value, low_open=is_open, edges=edges)._or_none()
        return replace(self, edges=edges)

    def intersect(self, other: Domain) -> Domain | None:
        """Return the values that both have; None if there are none."""
        allowed = self.allowed if other.allowed is None else other.allowed if self.allowed is None else self.allowed & other.allowed
        narrower: Domain | None = replace(self, allowed=allowed, excluded=self.excluded | other.excluded)
        if narrower is not None and other.low > -math.inf:
            narrower = narrower.bound("$gt" if other.low_open else "$gte", other.low)
        if narrower is not None and other.high < math.inf:
            narrower = narrower.bound("$lt" if other.high_open else "$lte", other.high)
        return narrower._or_none() if narrower is not None else None

    def _or_none(self) -> Domain | None:
        if self.allowed is not None:
            return self if any(value in self for value in self.allowed) else None
        if self.low > self.high or (self.low == self.high and (self.low_open or self.high_open or self.low in self.excluded)):
            return None
        if self.integer and self.high - self.low <= _VALUES_MAX:
            whole = range(math.ceil(self.low), math.floor(self.high) + 1)
            return self if any(value in self for value in whole) else None
        return self


_FREE: Final = Domain()
_FLAGS: Final = Domain(allowed=frozenset([True, False]))

# The signs of (left - right) that an operator allows.
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


def negate(atom: Atom) -> Atom:
    """Return the atom that holds where this one does not, provided that its values are present."""
    return atom._replace(operator=_OPERATORS[_ALL_SIGNS - _SIGNS[atom.operator]])


@dataclass(frozen=True, slots=True)
class Constraints:
    """A set of cases. `optional` lists the optional paths along each path; the path is present if all of these are."""

    optional: Mapping[str, tuple[str, ...]]
    domains: Mapping[str, Domain]
    present: Mapping[str, bool] = field(default_factory=dict)
    pairs: Mapping[Pair, frozenset[int]] = field(default_factory=dict)
    guards: Mapping[str, bool] = field(default_factory=dict)

    def add(self, conjunction: Conjunction) -> Constraints | None:
        """Return the cases of the set in which all the atoms hold as well; None if there are none."""
        constraints = self
        for atom in conjunction:
            narrower = constraints._add_atom(atom)
            if narrower is None:
                return None
            constraints = narrower
        return constraints._propagate() if constraints.pairs else constraints

    def work(self, conjunction: Conjunction) -> int:
        """Return the cost of `add` in steps of a Budget: each atom copies the set."""
        known = len(self.domains) + len(self.present) + len(self.guards) + len(self.pairs)
        return 2 + len(conjunction) * (4 + (known + len(self.optional)) // 16) + 4 * len(self.pairs)

    def domain(self, path: str) -> Domain:
        """Return the values that a path may have if it is present."""
        return self.domains.get(path, _FREE)

    def _add_atom(self, atom: Atom) -> Constraints | None:
        name = atom.left.name
        if not isinstance(atom.right, str):
            return self._add_pair(name, atom.operator, atom.right.name)
        value: Scalar = json.loads(atom.right)
        if atom.left.kind == GUARD:
            outcome = value is (atom.operator == "")
            if self.guards.get(name, outcome) is not outcome:
                return None
            return replace(self, guards={**self.guards, name: outcome})
        if atom.left.kind == PRESENCE:
            return self._add_presence(name, value is (atom.operator == ""))
        present = self._add_presence(name, True)
        if present is None:
            return None
        known = present.domains.get(name, _FLAGS if isinstance(value, bool) else _FREE)
        domain = known.compare(atom.operator, value)
        return replace(present, domains={**present.domains, name: domain}) if domain is not None else None

    def _add_presence(self, path: str, is_present: bool) -> Constraints | None:
        """A present path needs all its optional steps; an absent one lacks the last of them, and everything below it."""
        steps = self.optional.get(path, ())
        if not is_present:
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

    def _add_pair(self, left: str, operator: str, right: str) -> Constraints | None:
        present = self._add_presence(left, True)
        present = present._add_presence(right, True) if present is not None else None
        if present is None:
            return None
        signs = _SIGNS[operator]
        if left > right:
            left, right, signs = right, left, frozenset(-sign for sign in signs)
        if left == right:
            return present if 0 in signs else None
        signs &= present.pairs.get((left, right), signs)
        return replace(present, pairs={**present.pairs, (left, right): signs}) if signs else None

    def _propagate(self) -> Constraints | None:
        """Return the set with each pair's relation applied to the bounds of its two values."""
        domains = dict(self.domains)
        for (left, right), signs in self.pairs.items():
            of_left: Domain | None = domains.get(left, _FREE)
            of_right: Domain | None = domains.get(right, _FREE)
            assert of_left is not None  # noqa: S101  # for the type checker
            assert of_right is not None  # noqa: S101
            if signs == {0}:
                of_left = of_right = of_left.intersect(of_right)
            elif 1 not in signs:
                of_left, of_right = _order(of_left, of_right, 0 not in signs)
            elif -1 not in signs:
                of_right, of_left = _order(of_right, of_left, 0 not in signs)
            if of_left is None or of_right is None:
                return None
            domains[left], domains[right] = of_left, of_right
        return replace(self, domains=domains)


def _order(less: Domain, more: Domain, strictly: bool) -> tuple[Domain | None, Domain | None]:
    """Return both domains, without the values for which `less` < `more` (<= if not `strictly`) is impossible."""
    lesser = less.bound("$lt" if strictly or more.high_open else "$lte", more.high) if more.high < math.inf else less
    greater = more.bound("$gt" if strictly or less.low_open else "$gte", less.low) if less.low > -math.inf else more
    return lesser, greater


def solve(formulas: Sequence[Formula], constraints: Constraints, budget: Budget) -> Iterator[Constraints]:
    """Yield sets of cases in which every formula holds. If there is no set and budget is left, no such case exists."""
    if not formulas:
        yield constraints
        return
    for conjunction in formulas[0]:
        if not budget.take(constraints.work(conjunction)):
            return
        narrower = constraints.add(conjunction)
        if narrower is not None:
            yield from solve(formulas[1:], narrower, budget)

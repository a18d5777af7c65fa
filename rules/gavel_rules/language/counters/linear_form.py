"""Sums as linear forms, so that two texts of one sum are equal: `a + b > 9.0` and `b > 9.0 - a` compare the same form with zero."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final, NamedTuple

from gavel_rules.language.cel.syntax_tree import Call, Constant, Node

_CONVERSIONS: Final = frozenset(["double", "int"])


class LinearForm(NamedTuple):
    """`constant` plus the sum of `terms`, each with its coefficient; none of these is zero."""

    constant: Decimal
    terms: Mapping[Node, Decimal]

    def plus(self, other: LinearForm, factor: Decimal | int = 1) -> LinearForm:
        """Return the sum of this form and a multiple of the other."""
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            terms[term] = terms.get(term, Decimal(0)) + factor * coefficient
        return LinearForm(self.constant + factor * other.constant, {term: one for term, one in terms.items() if one})


def is_exact_divisor(number: float | Decimal) -> bool:
    """Return whether 1 divided by a number is a decimal."""
    divisor = Decimal(repr(number)) if isinstance(number, float) else number
    return 1 / divisor * divisor == 1


ZERO: Final = LinearForm(Decimal(0), {})


def linear_form(node: Node) -> LinearForm:
    """Return the linear form of a number. Conversions are left out. Anything but a literal, sum, multiple or quotient is a term."""
    match node:
        case Constant(_, int() | float() as value) if not isinstance(value, bool):
            return LinearForm(Decimal(repr(value)), {})
        case Call("_+_", None, (left, right)):
            return linear_form(left).plus(linear_form(right))
        case Call("_-_", None, (left, right)):
            return linear_form(left).plus(linear_form(right), -1)
        case Call("_*_", None, (left, right)):
            factors = linear_form(left), linear_form(right)
            for one, other in (factors, factors[::-1]):
                if not one.terms:
                    return ZERO.plus(other, one.constant)
        case Call("_/_", None, (left, Constant("double", float() as divisor))) if divisor and is_exact_divisor(divisor):
            return ZERO.plus(linear_form(left), 1 / Decimal(repr(divisor)))
        case Call("-_", None, (operand,)):
            return ZERO.plus(linear_form(operand), -1)
        case Call(function, None, (operand,)) if function in _CONVERSIONS:
            return linear_form(operand)
    return LinearForm(Decimal(0), {node: Decimal(1)})

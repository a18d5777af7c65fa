"""The operators that join expressions and their meanings, in a random layout: optional parentheses, comments and line breaks."""

from __future__ import annotations

from typing import Final

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.meanings import Expression, Meaning, join_reads, strict
from tests.fuzz.vocabulary import Draw

ORDERS: Final = ("==", "!=", "<", "<=", ">", ">=")
SPACES: Final = ("", " ", " ", " ", "\n", "\t ", ' // ) ? : && "x\n')


class Chance:
    """Draws numbers, choices and spaces."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def number(self, most: int) -> int:
        """Draw a number from 0 to `most`."""
        return int(self.draw(st.integers(0, most)))

    def pick(self, *of: str) -> str:
        """Draw one of some texts."""
        return str(self.draw(st.sampled_from(of)))

    def space(self) -> str:
        """Draw the space between two tokens; it may be empty."""
        return str(self.draw(st.sampled_from(SPACES)))


class Composer:
    """Joins expressions by operators and calls."""

    def __init__(self, chance: Chance) -> None:
        self._chance = chance

    def both(self, left: Expression, right: Expression) -> Expression:
        """Return &&."""
        return self.binary("&&", m.AND, left, right, m.both(left.meaning, right.meaning))

    def either(self, left: Expression, right: Expression) -> Expression:
        """Return ||."""
        return self.binary("||", m.OR, left, right, m.either(left.meaning, right.meaning))

    def negate(self, operand: Expression) -> Expression:
        """Return !."""
        return Expression(f"!{operand.at(m.MEMBER)}", m.UNARY, strict(lambda value: not value, operand), operand.reads)

    def choose(self, condition: Expression, then: Expression, otherwise: Expression) -> Expression:
        """Return the operator ?:."""
        text = f"{condition.at(m.OR)}{self._chance.space()}?{self._chance.space()}{then.at(m.OR)} : {otherwise.at(m.TERNARY)}"
        meaning = m.choice(condition.meaning, then.meaning, otherwise.meaning)
        return self._wrap(Expression(text, m.TERNARY, meaning, join_reads(condition, then, otherwise)))

    def compare(self, operator: str, left: Expression, right: Expression) -> Expression:
        """Return a comparison, by an operator of ORDERS."""
        return self.binary(operator, m.RELATION, left, right, strict(m.COMPARISONS[operator], left, right))

    def binary(self, operator: str, level: int, left: Expression, right: Expression, meaning: Meaning) -> Expression:
        """Return an operator of a precedence with its two operands."""
        gap = " " if operator in ("in", "-") else ""
        text = f"{left.at(level)}{self._chance.space() or gap}{operator}{self._chance.space() or gap}{right.at(level + 1)}"
        return self._wrap(Expression(text, level, meaning, join_reads(left, right)))

    def call(self, function: str, argument: Expression, meaning: Meaning) -> Expression:
        """Return a call of a function of one argument."""
        return Expression(f"{function}({argument.at(m.TERNARY)})", m.MEMBER, meaning, argument.reads)

    def _wrap(self, expression: Expression) -> Expression:
        """Add parentheses that are not needed, sometimes."""
        if self._chance.number(7):
            return expression
        return Expression(
            f"({self._chance.space()}{expression.text}{self._chance.space()})", m.MEMBER, expression.meaning, expression.reads
        )

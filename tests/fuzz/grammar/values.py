"""Expressions of numbers and texts, and the conversions between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.grammar.composer import Chance, Composer
from tests.fuzz.grammar.leaves import Leaves, Names
from tests.fuzz.meanings import Expression, join_reads, strict
from tests.fuzz.vocabulary import KEYS


class Values:
    """Draws numbers and texts; `boolean` draws the condition of a choice between two of them."""

    def __init__(self, chance: Chance, composer: Composer, leaves: Leaves, boolean: Callable[[int, Names], Expression]) -> None:
        self._chance = chance
        self._composer = composer
        self._leaves = leaves
        self._boolean = boolean

    def number(self, depth: int, names: Names) -> Expression:
        """Draw a number."""
        expression = self._new_number(depth, names)
        if self._leaves.may_name(names) and self._chance.number(31) == 0:
            return self._leaves.name(expression)
        return expression

    def _new_number(self, depth: int, names: Names) -> Expression:
        if depth <= 0:
            return (
                self._leaves.number_literal()
                if self._chance.number(1)
                else self._leaves.leaf(self._chance.pick("int", "double"), names, self._leaves.number_literal)
            )
        match self._chance.number(5):
            case 0 | 1:
                return self._int_arithmetic(depth, names)
            case 2 | 3:
                return self._double_arithmetic(depth, names)
            case 4:
                return self._measure(names)
        kind = self._chance.pick("int", "double")
        literal = self._leaves.int_literal if kind == "int" else self._leaves.double_literal
        then, otherwise = self._leaves.leaf(kind, names, literal), self._leaves.leaf(kind, names, literal)
        return self._composer.choose(self._boolean(depth - 1, names), then, otherwise)

    def _int_arithmetic(self, depth: int, names: Names) -> Expression:
        operator = self._chance.draw(st.sampled_from(sorted(m.INT_ARITHMETIC)))
        left = self._int_arithmetic(depth - 1, names) if depth > 1 else self._leaves.leaf("int", names, self._leaves.int_literal)
        if self._chance.number(5) == 0:
            return self._unsigned(left)
        return self._arithmetic(operator, m.INT_ARITHMETIC, left, self._leaves.leaf("int", names, self._leaves.int_literal))

    def _double_arithmetic(self, depth: int, names: Names) -> Expression:
        operator = self._chance.draw(st.sampled_from(sorted(m.DOUBLE_ARITHMETIC)))
        left = self._double_arithmetic(depth - 1, names) if depth > 1 else self._leaves.leaf("double", names, self._leaves.double_literal)
        return self._arithmetic(operator, m.DOUBLE_ARITHMETIC, left, self._leaves.leaf("double", names, self._leaves.double_literal))

    def _arithmetic(self, operator: str, table: Mapping[str, Callable[..., Any]], left: Expression, right: Expression) -> Expression:
        level = m.ADDITION if operator in "+-" else m.MULTIPLICATION
        return self._composer.binary(operator, level, left, right, strict(table[operator], left, right))

    def _unsigned(self, number: Expression) -> Expression:
        """uint() and back: an error below zero."""
        return self._composer.call(
            "int", self._composer.call("uint", number, meaning=strict(m.to_unsigned, number)), meaning=strict(m.to_unsigned, number)
        )

    def _measure(self, names: Names) -> Expression:
        """Draw a number that is computed from another type: a size or a conversion."""
        match self._chance.number(7):
            case 7:
                return self._total(names)
            case 6:
                return self._binding(self._leaves.leaf("int", names, self._leaves.int_literal))
            case 5:
                return self._method(m.TEXT_TO_INT, self.text(0, names))
            case 0:
                text = self.text(0, names)
                return self._composer.call("size", text, meaning=strict(len, text))
            case 1:
                of = self._leaves.leaf("double", names, self._leaves.double_literal)
                return self._composer.call("int", of, meaning=strict(m.truncate, of))
            case 2:
                of = self._leaves.leaf("int", names, self._leaves.int_literal)
                return self._composer.call("double", of, meaning=strict(float, of))
            case 3:
                of = self.text(0, names)
                return self._composer.call("int", of, meaning=strict(m.parse_int, of))
        many = [*self._leaves.of_kind("list"), *self._leaves.of_kind("map")]
        if not many:
            return self._leaves.int_literal()
        counted = self._leaves.variable(self._chance.draw(st.sampled_from(many)))
        return self._composer.call("size", counted, meaning=strict(len, counted))

    def _total(self, names: Names) -> Expression:
        """Draw the sum, or the smallest or largest element, of a list of ints or of a literal list of doubles."""
        function = self._chance.pick("sum", "min", "max")
        lists = [of for of in self._leaves.of_kind("list") if of.type.element is not None and of.type.element.kind == "int"]
        if lists and self._chance.number(1):
            items = self._leaves.variable(self._chance.draw(st.sampled_from(lists)))
        else:
            elements = [self._leaves.leaf("int", names, self._leaves.int_literal) for _ in range(1 + self._chance.number(2))]
            text = f"[{', '.join(element.at(m.TERNARY) for element in elements)}]"
            items = Expression(text, m.MEMBER, strict(lambda *of: list(of), *elements), join_reads(*elements))
        return Expression(f"{items.text}.{function}()", m.MEMBER, strict(m.TOTALS[function], items), items.reads)

    def _binding(self, value: Expression) -> Expression:
        """Draw cel.bind() of an int, which its expression reads twice."""
        text = f"cel.bind(bound, {value.at(m.TERNARY)}, bound - bound{self._chance.space()}+ bound)"
        return Expression(text, m.MEMBER, strict(lambda of: m.INT_ARITHMETIC["+"](m.INT_ARITHMETIC["-"](of, of), of), value), value.reads)

    def text(self, depth: int, names: Names) -> Expression:
        """Draw a text."""
        if depth <= 0:
            return (
                self._leaves.text_literal()
                if self._chance.number(2) == 0
                else self._leaves.leaf("string", names, self._leaves.text_literal)
            )
        match self._chance.number(4):
            case 0:
                left, right = self.text(0, names), self.text(0, names)
                return self._composer.binary("+", m.ADDITION, left, right, strict(lambda a, b: a + b, left, right))
            case 1:
                number = self._leaves.leaf("int", names, self._leaves.int_literal)
                return self._composer.call("string", number, meaning=strict(str, number))
            case 2:
                return self._index(names)
            case 3:
                return self._method(m.TEXT_TO_TEXT, self.text(0, names))
        return self._composer.choose(self._boolean(depth - 1, names), self.text(0, names), self.text(0, names))

    def _method(self, table: Mapping[str, Callable[[str], Any]], text: Expression) -> Expression:
        """Draw a method call on a text."""
        function = self._chance.draw(st.sampled_from(sorted(table)))
        return Expression(f"{text.at(m.MEMBER)}.{function}", m.MEMBER, strict(table[function], text), text.reads)

    def _index(self, names: Names) -> Expression:
        """Draw a read of a list or map by index or key; an absent one is an error."""
        many = [of for kind in ("list", "map") for of in self._leaves.of_kind(kind) if of.type.element and of.type.element.kind == "string"]
        if not many:
            return self._leaves.text_literal()
        of = self._chance.draw(st.sampled_from(many))
        whole = self._leaves.variable(of)
        index = self._chance.number(2) if of.type.kind == "list" else self._chance.draw(st.sampled_from(KEYS))
        text = f"{whole.text}[{index if isinstance(index, int) else self._leaves.quoted(index)}]"
        return Expression(text, m.MEMBER, strict(lambda items: items[index], whole), whole.reads)

"""Random conditions of the whole language over a vocabulary, each with its meaning (`meanings`).

Every condition type-checks, and reads optional values only under has(), in all the forms that guard a read. The layout is random: optional
parentheses, comments, line breaks and all kinds of string literals. That tests the compiler, which cuts guards out of the text by their
places in it. Some literals become constants of the document, and times are also read on the clock of its zone (`documents`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.grammar.composer import ORDERS, Chance, Composer
from tests.fuzz.grammar.guards import Guards
from tests.fuzz.grammar.leaves import Leaves, Names
from tests.fuzz.grammar.times import Times
from tests.fuzz.grammar.values import Values
from tests.fuzz.meanings import UNKNOWN, Expression, join_reads, strict
from tests.fuzz.vocabulary import COUNTERS, DOUBLES, KEYS, WORDS, Counter, Draw, Variable

DEPTH_MAX: Final = 4
PATTERNS: Final = ("a", "^a", "^[ab]+$", "^$", "(a|b)*c", "\\d+", "^.{1,3}$", "(?i)A", "^((a)*|[ab])c$", "[\\x{4e00}-\\x{9fff}]")


class Writer:
    """Writes expressions over the names of one scope.

    `literals` are the values that cases should come close to, `variables` and `constants` those of the document.
    """

    def __init__(self, draw: Draw, names: Iterable[Variable]) -> None:
        self._chance = Chance(draw)
        self._use(Leaves(self._chance, names, COUNTERS))

    def beside(self, names: Iterable[Variable], counters: Sequence[Counter] = ()) -> Writer:
        """Return a writer for another scope of the document, which has these names but no `now`, and no variables of the document."""
        other = Writer(self._chance.draw, ())
        leaves = Leaves(self._chance, names, counters, are_conditions=False)
        leaves.literals, leaves.constants = self.literals, self.constants
        other._use(leaves)
        return other

    def _use(self, leaves: Leaves) -> None:
        self._composer = Composer(self._chance)
        self._leaves = leaves
        self._guards = Guards(self._chance, self._composer, self._leaves)
        self._times = Times(self._chance, self._composer, self._leaves)
        self._values = Values(self._chance, self._composer, self._leaves, self._boolean)
        self._named: list[Expression] = []
        self.literals = self._leaves.literals
        self.variables = self._leaves.variables
        self.constants = self._leaves.constants

    def condition(self) -> Expression:
        """Draw a condition of a rule: all its optional reads are guarded."""
        return self._guards.guard_reads(self._boolean(self._chance.number(DEPTH_MAX), {}), lambda path: True)

    def details(self) -> dict[str, Expression]:
        """Draw what a rule shows with its decision: values of every type, all their optional reads guarded."""
        return {f"d{number}": self.value() for number in range(self._chance.number(2))}

    def value(self) -> Expression:
        """Draw a double, a text or a boolean, all its optional reads guarded."""
        match self._chance.number(2):
            case 0:
                return self.double()
            case 1:
                return self.text()
        return self.condition()

    def double(self) -> Expression:
        """Draw a double, all its optional reads guarded."""
        number = self._values.number(2, {})
        double = self._composer.call("double", number, meaning=strict(float, number))
        return self._guards.guard_value(double, self._leaves.double_literal)

    def text(self) -> Expression:
        """Draw a text, all its optional reads guarded."""
        return self._guards.guard_value(self._values.text(2, {}), self._leaves.text_literal)

    def subject(self) -> Expression:
        """Draw a text that is often a subject, all its optional reads guarded."""
        return self._guards.guard_value(self._subject(), self._leaves.text_literal)

    def subjects(self) -> Expression:
        """Draw a list of such texts."""
        lists = [of for of in self._leaves.of_kind("list") if of.type.element is not None and of.type.element.kind == "string"]
        if lists and self._chance.number(1):
            items = self._leaves.variable(self._chance.draw(st.sampled_from(lists)))
            body = self._prefixed(Expression("t", m.MEMBER, lambda values: values["t"]))
            meaning = m.map_items(m.outcomes_of(items.meaning, "t", body.meaning))
            many = Expression(f"{items.text}.map(t, {body.at(m.TERNARY)})", m.MEMBER, meaning, items.reads)
        else:
            many = self._list([self._subject() for _ in range(1 + self._chance.number(2))])
        return self._guards.guard_value(many, lambda: self._list([self._leaves.text_literal()]))

    def _subject(self) -> Expression:
        text = self._values.text(self._chance.number(2), {})
        return self._prefixed(text) if self._chance.number(3) else text

    def _prefixed(self, text: Expression) -> Expression:
        kind = self._chance.pick("order/", "a/", "team-1/x")
        literal = Expression(self._leaves.quoted(kind), m.MEMBER, lambda values: kind)
        return self._composer.binary("+", m.ADDITION, literal, text, strict(lambda a, b: a + b, literal, text))

    def _list(self, elements: Sequence[Expression]) -> Expression:
        text = f"[{self._chance.space()}{', '.join(element.at(m.TERNARY) for element in elements)}{self._chance.space()}]"
        return Expression(text, m.MEMBER, strict(lambda *items: list(items), *elements), join_reads(*elements))

    def _boolean(self, depth: int, names: Names) -> Expression:
        if self._named and self._chance.number(11) == 0:
            return self._chance.draw(st.sampled_from(self._named))  # type: ignore[no-any-return]
        expression = self._new_boolean(depth, names)
        if self._leaves.may_name(names) and self._chance.number(15) == 0:
            expression = self._leaves.name(expression)
            self._named.append(expression)
        return expression

    def _new_boolean(self, depth: int, names: Names) -> Expression:
        if depth <= 0 or self._chance.number(3) == 0:
            return self._guards.maybe_guard(self._atom(depth, names))
        match self._chance.number(7):
            case 0 | 1:
                return self._guards.maybe_guard(self._composer.both(self._boolean(depth - 1, names), self._boolean(depth - 1, names)))
            case 2 | 3:
                return self._guards.maybe_guard(self._composer.either(self._boolean(depth - 1, names), self._boolean(depth - 1, names)))
            case 4 | 5:
                return self._composer.negate(self._boolean(depth - 1, names))
            case 6:
                parts = [self._boolean(depth - 1, names) for _ in range(3)]
                return self._guards.maybe_guard(self._composer.choose(*parts))
        return self._guards.maybe_guard(self._atom(depth, names))

    def _atom(self, depth: int, names: Names) -> Expression:
        writers: Sequence[tuple[int, Callable[[int, Names], Expression]]] = (
            (14, self._number_comparison),
            (6, self._text_comparison),
            (4, self._flag),
            (6, self._membership),
            (3, self._presence),
            (2, self._text_test),
            (2, self._macro),
            (1, self._times.time_test if self._leaves.are_conditions else self._number_comparison),
            (1, self._mixed_equality),
        )
        write: Callable[[int, Names], Expression] = self._chance.draw(
            st.sampled_from([of for weight, of in writers for _ in range(weight)])
        )
        return write(depth, names)

    def _flag(self, depth: int, names: Names) -> Expression:
        left = self._leaves.leaf("bool", names, lambda: self._leaves.constant(self._chance.draw(st.booleans())))
        if self._chance.number(1):
            return left
        right = self._leaves.leaf("bool", names, lambda: self._leaves.constant(self._chance.draw(st.booleans())))
        return self._composer.compare(self._chance.pick("==", "!="), left, right)

    def _number_comparison(self, depth: int, names: Names) -> Expression:
        operator = self._chance.draw(st.sampled_from(ORDERS))
        if self._chance.number(3):
            sides = [
                self._leaves.leaf(self._chance.pick("int", "double"), names, self._leaves.number_literal),
                self._values.number(0, names),
            ]
            return self._composer.compare(operator, *(sides if self._chance.number(3) else reversed(sides)))
        return self._composer.compare(
            operator, self._values.number(self._chance.number(min(depth, 2)), names), self._values.number(self._chance.number(1), names)
        )

    def _text_comparison(self, depth: int, names: Names) -> Expression:
        operator = self._chance.pick("==", "==", "!=", "!=", "==", "<", ">=")
        return self._composer.compare(operator, self._values.text(self._chance.number(3) // 3, names), self._values.text(0, names))

    def _mixed_equality(self, depth: int, names: Names) -> Expression:
        """Draw an equality of different types behind dyn(): never equal, never an error."""
        kinds = [
            self._values.number(0, names),
            self._values.text(0, names),
            self._leaves.leaf("bool", names, lambda: self._leaves.constant(True)),
        ]
        left, right = self._chance.draw(st.permutations(kinds))[:2]
        return self._composer.compare(self._chance.pick("==", "!="), self._composer.call("dyn", left, meaning=left.meaning), right)

    def _membership(self, depth: int, names: Names) -> Expression:
        if self._chance.number(1):
            kinds, left = (
                frozenset({"int", "double"}),
                self._leaves.leaf(self._chance.pick("int", "double"), names, self._leaves.number_literal),
            )
            elements = [
                self._values.number(0, names) if self._chance.number(5) == 0 else self._leaves.number_literal()
                for _ in range(self._chance.number(4))
            ]
        else:
            kinds, left = frozenset({"string"}), self._leaves.leaf("string", names, self._leaves.text_literal)
            elements = [
                self._values.text(0, names) if self._chance.number(5) == 0 else self._leaves.text_literal()
                for _ in range(self._chance.number(4))
            ]
        if self._chance.number(5) == 0:
            values = [self._chance.draw(st.sampled_from(WORDS if "string" in kinds else DOUBLES)) for _ in range(self._chance.number(4))]
            self._leaves.literals.update(values)
            many = self._leaves.as_constant(values)
            if many is not None:
                return self._composer.binary("in", m.RELATION, left, many, strict(m.contains, left, many))
        lists = [of for of in self._leaves.of_kind("list") if of.type.element is not None and of.type.element.kind in kinds]
        if lists and self._chance.number(2) == 0:
            many = self._leaves.variable(self._chance.draw(st.sampled_from(lists)))
        else:
            many = self._list(elements)
        meaning = strict(m.contains, left, many)
        return self._composer.binary("in", m.RELATION, left, many, meaning)

    def _presence(self, depth: int, names: Names) -> Expression:
        maps = self._leaves.of_kind("map")
        if maps and self._chance.number(2) == 0:
            of = self._chance.draw(st.sampled_from(maps))
            path, reads = f"{of.name}.{self._chance.draw(st.sampled_from(KEYS))}", of.reads
        elif self._leaves.optional:
            of = self._chance.draw(st.sampled_from(self._leaves.optional))
            path, reads = of.name, of.reads[:-1]
        else:
            return self._leaves.constant(self._chance.draw(st.booleans()))
        return self._guards.presence_test(path, reads)

    def _text_test(self, depth: int, names: Names) -> Expression:
        left = self._values.text(self._chance.number(1), names)
        function = self._chance.pick("startsWith", "endsWith", "contains", "matches")
        if function == "matches":
            pattern = self._chance.draw(st.sampled_from(PATTERNS))
            text = f"{left.at(m.MEMBER)}.matches({self._leaves.quoted(pattern)})"
            return Expression(text, m.MEMBER, strict(lambda _: UNKNOWN, left), left.reads)
        right = self._values.text(0, names)
        of: Callable[[str, str], bool] = {"startsWith": str.startswith, "endsWith": str.endswith, "contains": str.__contains__}[function]
        text = f"{left.at(m.MEMBER)}.{function}({right.at(m.TERNARY)})"
        return Expression(text, m.MEMBER, strict(of, left, right), join_reads(left, right))

    def _macro(self, depth: int, names: Names) -> Expression:
        lists = [variable for variable in self._leaves.of_kind("list") if variable.type.element is not None]
        if not lists or names or depth < 0:
            return self._number_comparison(depth, names)
        over = self._chance.draw(st.sampled_from(lists))
        element = over.type.element
        assert element is not None
        name = self._chance.draw(st.sampled_from(["t", "item", "x1"]))
        body = self._boolean(min(depth, 1), {name: element})
        body = self._guards.guard_reads(body, lambda path: path.startswith(f"{name}."))
        macro = self._chance.pick("all", "exists", "exists_one", "filter", "map")
        items = self._leaves.variable(over)
        outcomes = m.outcomes_of(items.meaning, name, body.meaning)
        text = f"{items.text}.{macro}({name}, {body.at(m.TERNARY)})"
        reads = join_reads(items, body)
        if macro in ("all", "exists", "exists_one"):
            return Expression(text, m.MEMBER, m.quantify(macro, outcomes), reads)
        if macro == "filter":
            counted = Expression(text, m.MEMBER, m.matching_items(items.meaning, outcomes), reads)
            return self._composer.compare(
                self._chance.pick("==", ">"), self._composer.call("size", counted, meaning=strict(len, counted)), self._leaves.int_literal()
            )
        mapped = Expression(text, m.MEMBER, m.map_items(outcomes), reads)
        wanted = self._leaves.constant(self._chance.draw(st.booleans()))
        return self._composer.binary("in", m.RELATION, wanted, mapped, strict(lambda item, found: item in found, wanted, mapped))

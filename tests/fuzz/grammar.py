"""Random conditions of the whole language over a vocabulary, each with its meaning (`meanings`).

Every condition type-checks, and reads optional values only under has(), in all the forms that guard a read. The layout is random: optional
parentheses, comments, line breaks and all kinds of string literals. That tests the compiler, which cuts guards out of the text by their
places in it. Some literals become constants of the document, and times are also read on the clock of its zone (`documents`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.documents import CALENDAR, DATES, ZONE, constant, date_text, holds, zone_time
from tests.fuzz.meanings import ERROR, UNKNOWN, Expression, Meaning, join_reads, strict
from tests.fuzz.vocabulary import DOUBLES, KEYS, NUMBERS, WORDS, Draw, Type, Variable, Vocabulary

DEPTH_MAX: Final = 4
VARIABLES_MAX: Final = 5
CONSTANTS_MAX: Final = 8
ORDERS: Final = ("==", "!=", "<", "<=", ">", ">=")
PATTERNS: Final = ("a", "^a", "^[ab]+$", "^$", "(a|b)*c", "\\d+", "^.{1,3}$", "(?i)A", "^((a)*|[ab])c$", "[\\x{4e00}-\\x{9fff}]")
SPACES: Final = ("", " ", " ", " ", "\n", "\t ", ' // ) ? : && "x\n')
ZONES: Final = {"": 0, '"UTC"': 0, '"+02:00"': 120, '"-05:30"': -330, '"+14:00"': 840}
TIMES: Final = (
    *("2000-01-01T00:00:00Z", "2023-11-14T22:13:20Z", "2024-02-29T23:59:59.999Z", "2024-03-31T01:00:00Z"),
    *("2026-12-31T23:30:00Z", "1970-01-01T00:00:00Z", "2100-01-01T00:00:00Z"),
)
DURATIONS: Final = {"0s": 0, "1s": 1_000, "90m": 5_400_000, "36h": 129_600_000, "250ms": 250, "-1h": -3_600_000, "8760h": 31_536_000_000}

Names = Mapping[str, Type]  # of macros' variables


class Writer:
    """Writes conditions over one vocabulary.

    `literals` collects the values that cases should come close to, `variables` the parts of conditions that became variables, `constants`
    the literals that became constants.
    """

    def __init__(self, draw: Draw, vocabulary: Vocabulary) -> None:
        self._draw = draw
        self._of_kind: dict[str, list[Variable]] = {}
        for variable in vocabulary.variables():
            self._of_kind.setdefault(variable.type.kind, []).append(variable)
        self._optional = [variable for variables in self._of_kind.values() for variable in variables if variable.name in variable.reads]
        self._in_macro = False
        self._named: list[Expression] = []
        self.literals: set[int | float | str] = set()
        self.variables: dict[str, str] = {}
        self.constants: dict[str, Any] = {}

    def condition(self) -> Expression:
        """Draw a condition of a rule: all its optional reads are guarded."""
        return self._guard_reads(self._boolean(self._number(DEPTH_MAX), {}), lambda path: True)

    def details(self) -> dict[str, Expression]:
        """Draw what a rule shows with its decision: values of every type, all their optional reads guarded."""
        return {f"d{number}": self._detail() for number in range(self._number(2))}

    def _detail(self) -> Expression:
        match self._number(2):
            case 0:
                number = self._numeric(2, {})
                return self._guard_value(self._call("double", number, meaning=strict(float, number)), self._double_literal)
            case 1:
                return self._guard_value(self._text(2, {}), self._text_literal)
        return self.condition()

    def _guard_value(self, expression: Expression, otherwise: Callable[[], Expression]) -> Expression:
        """Return a value that is another one where an optional value that it reads is absent."""
        for path in reversed(expression.reads):
            rest = tuple(read for read in expression.reads if read != path)
            tested = self._presence_test(path, tuple(read for read in rest if path.startswith(f"{read}.")))
            inner = Expression(expression.text, expression.level, expression.meaning, rest)
            expression = self._choice(tested, inner, otherwise())
        return expression

    # Booleans.

    def _boolean(self, depth: int, names: Names) -> Expression:
        if self._named and self._number(11) == 0:
            return self._draw(st.sampled_from(self._named))  # type: ignore[no-any-return]
        expression = self._new_boolean(depth, names)
        if not self._in_macro and len(self.variables) < VARIABLES_MAX and self._number(15) == 0:
            expression = self._name(expression)
            self._named.append(expression)
        return expression

    def _name(self, expression: Expression) -> Expression:
        """Make the expression a variable of the document; return its use."""
        name = f"v{len(self.variables)}"
        self.variables[name] = expression.text
        return Expression(name, m.MEMBER, expression.meaning, expression.reads)

    def _new_boolean(self, depth: int, names: Names) -> Expression:
        if depth <= 0 or self._number(3) == 0:
            return self._maybe_guard(self._atom(depth, names), names)
        match self._number(7):
            case 0 | 1:
                return self._maybe_guard(self._both(self._boolean(depth - 1, names), self._boolean(depth - 1, names)), names)
            case 2 | 3:
                return self._maybe_guard(self._either(self._boolean(depth - 1, names), self._boolean(depth - 1, names)), names)
            case 4 | 5:
                return self._not(self._boolean(depth - 1, names))
            case 6:
                parts = [self._boolean(depth - 1, names) for _ in range(3)]
                return self._maybe_guard(self._choice(*parts), names)
        return self._maybe_guard(self._atom(depth, names), names)

    def _atom(self, depth: int, names: Names) -> Expression:
        writers: Sequence[tuple[int, Callable[[int, Names], Expression]]] = (
            (14, self._number_comparison),
            (6, self._text_comparison),
            (4, self._flag),
            (6, self._membership),
            (3, self._presence),
            (2, self._text_test),
            (2, self._macro),
            (1, self._time_test),
            (1, self._mixed_equality),
        )
        write: Callable[[int, Names], Expression] = self._draw(st.sampled_from([of for weight, of in writers for _ in range(weight)]))
        return write(depth, names)

    def _flag(self, depth: int, names: Names) -> Expression:
        left = self._of("bool", names, lambda: self._constant(self._draw(st.booleans())))
        if self._number(1):
            return left
        right = self._of("bool", names, lambda: self._constant(self._draw(st.booleans())))
        return self._compare(self._pick("==", "!="), left, right)

    def _number_comparison(self, depth: int, names: Names) -> Expression:
        operator = self._draw(st.sampled_from(ORDERS))
        if self._number(3):
            sides = [self._of(self._pick("int", "double"), names, self._number_literal), self._numeric(0, names)]
            return self._compare(operator, *(sides if self._number(3) else reversed(sides)))
        return self._compare(operator, self._numeric(self._number(min(depth, 2)), names), self._numeric(self._number(1), names))

    def _text_comparison(self, depth: int, names: Names) -> Expression:
        operator = self._pick("==", "==", "!=", "!=", "==", "<", ">=")
        return self._compare(operator, self._text(self._number(3) // 3, names), self._text(0, names))

    def _mixed_equality(self, depth: int, names: Names) -> Expression:
        """Draw an equality of different types behind dyn(): never equal, never an error."""
        kinds = [self._numeric(0, names), self._text(0, names), self._of("bool", names, lambda: self._constant(True))]
        left, right = self._draw(st.permutations(kinds))[:2]
        return self._compare(self._pick("==", "!="), self._call("dyn", left, meaning=left.meaning), right)

    def _membership(self, depth: int, names: Names) -> Expression:
        if self._number(1):
            kinds, left = frozenset({"int", "double"}), self._of(self._pick("int", "double"), names, self._number_literal)
            elements = [self._numeric(0, names) if self._number(5) == 0 else self._number_literal() for _ in range(self._number(4))]
        else:
            kinds, left = frozenset({"string"}), self._of("string", names, self._text_literal)
            elements = [self._text(0, names) if self._number(5) == 0 else self._text_literal() for _ in range(self._number(4))]
        if self._number(5) == 0:
            values = [self._draw(st.sampled_from(WORDS if "string" in kinds else DOUBLES)) for _ in range(self._number(4))]
            self.literals.update(values)
            many = self._as_constant(values)
            if many is not None:
                return self._binary("in", m.RELATION, left, many, strict(m.contains, left, many))
        lists = [of for of in self._of_kind.get("list", ()) if of.type.element is not None and of.type.element.kind in kinds]
        if lists and self._number(2) == 0:
            many = self._variable(self._draw(st.sampled_from(lists)))
        else:
            text = f"[{self._space()}{', '.join(element.at(m.TERNARY) for element in elements)}{self._space()}]"
            many = Expression(text, m.MEMBER, strict(lambda *items: list(items), *elements), join_reads(*elements))
        meaning = strict(m.contains, left, many)
        return self._binary("in", m.RELATION, left, many, meaning)

    def _presence(self, depth: int, names: Names) -> Expression:
        maps = self._of_kind.get("map", ())
        if maps and self._number(2) == 0:
            of = self._draw(st.sampled_from(maps))
            path, reads = f"{of.name}.{self._draw(st.sampled_from(KEYS))}", of.reads
        elif self._optional:
            of = self._draw(st.sampled_from(self._optional))
            path, reads = of.name, of.reads[:-1]
        else:
            return self._constant(self._draw(st.booleans()))
        return self._presence_test(path, reads)

    def _presence_test(self, path: str, reads: tuple[str, ...]) -> Expression:
        parent = path.rpartition(".")[0]
        root = "." not in parent and parent in ("params", "facts")

        def meaning(values: m.Values) -> Any:
            if not root and parent not in values:
                return ERROR
            return path in values

        return Expression(f"has({self._space()}{path}{self._space()})", m.MEMBER, meaning, reads)

    def _text_test(self, depth: int, names: Names) -> Expression:
        left = self._text(self._number(1), names)
        function = self._pick("startsWith", "endsWith", "contains", "matches")
        if function == "matches":
            pattern = self._draw(st.sampled_from(PATTERNS))
            text = f"{left.at(m.MEMBER)}.matches({self._quoted(pattern)})"
            return Expression(text, m.MEMBER, strict(lambda _: UNKNOWN, left), left.reads)
        right = self._text(0, names)
        of: Callable[[str, str], bool] = {"startsWith": str.startswith, "endsWith": str.endswith, "contains": str.__contains__}[function]
        text = f"{left.at(m.MEMBER)}.{function}({right.at(m.TERNARY)})"
        return Expression(text, m.MEMBER, strict(of, left, right), join_reads(left, right))

    # Macros.

    def _macro(self, depth: int, names: Names) -> Expression:
        lists = [variable for variable in self._of_kind.get("list", ()) if variable.type.element is not None]
        if not lists or names or depth < 0:
            return self._number_comparison(depth, names)
        over = self._draw(st.sampled_from(lists))
        element = over.type.element
        assert element is not None
        name = self._draw(st.sampled_from(["t", "item", "x1"]))
        self._in_macro = True
        body = self._boolean(min(depth, 1), {**names, name: element})
        self._in_macro = False
        body = self._guard_reads(body, lambda path: path.startswith(f"{name}."))
        macro = self._pick("all", "exists", "exists_one", "filter", "map")
        items = self._variable(over)
        outcomes = m.outcomes_of(items.meaning, name, body.meaning)
        text = f"{items.text}.{macro}({name}, {body.at(m.TERNARY)})"
        reads = join_reads(items, body)
        if macro in ("all", "exists", "exists_one"):
            return Expression(text, m.MEMBER, m.quantify(macro, outcomes), reads)
        if macro == "filter":
            counted = Expression(text, m.MEMBER, m.matching_items(items.meaning, outcomes), reads)
            return self._compare(self._pick("==", ">"), self._call("size", counted, meaning=strict(len, counted)), self._int_literal())
        mapped = Expression(text, m.MEMBER, m.map_items(outcomes), reads)
        wanted = self._constant(self._draw(st.booleans()))
        return self._binary("in", m.RELATION, wanted, mapped, strict(lambda item, found: item in found, wanted, mapped))

    # Time.

    def _time_test(self, depth: int, names: Names) -> Expression:
        if self._number(1):
            return self._clock_test()
        moment = self._draw(st.sampled_from(TIMES))
        self.literals.add(moment)
        time = datetime.fromisoformat(moment)
        right = Expression(f"timestamp({self._quoted(moment)})", m.MEMBER, lambda values: time)
        length = self._draw(st.sampled_from(sorted(DURATIONS)))
        delta = timedelta(milliseconds=DURATIONS[length])
        duration = Expression(f"duration({self._quoted(length)})", m.MEMBER, lambda values: delta)
        now = Expression("now", m.MEMBER, lambda values: values["now"])
        operator = self._draw(st.sampled_from(ORDERS))
        match self._number(2):
            case 0:
                return self._compare(operator, now, right)
            case 1:
                later = self._binary("+", m.ADDITION, right, duration, strict(lambda at, by: at + by, right, duration))
                return self._compare(operator, now, later)
        return self._compare(operator, self._binary("-", m.ADDITION, now, right, strict(lambda at, by: at - by, now, right)), duration)

    def _clock_test(self) -> Expression:
        """Draw a test of `now` on the clock of UTC, of a fixed offset or of the document's zone."""
        zone = self._draw(st.sampled_from(sorted(ZONES)))
        clock: Meaning = lambda values: m.shift(values["now"], ZONES[zone])  # noqa: E731
        if self._number(1):
            zone = f"{self._space()}zones{self._space()}.{ZONE}"
            clock = lambda values: zone_time(values["now"])  # noqa: E731
        time = Expression("now", m.MEMBER, clock)
        if zone and self._number(2) == 0:
            date = Expression(f"now.toDate({zone})", m.MEMBER, strict(date_text, time))
            if self._number(1):
                dates = Expression(f"calendars.{CALENDAR}", m.MEMBER, lambda values: list(DATES))
                return self._binary("in", m.RELATION, date, dates, strict(m.contains, date, dates))
            literal = self._draw(st.sampled_from(DATES))
            return self._compare(self._pick("==", "<"), date, Expression(f'"{literal}"', m.MEMBER, lambda values: literal))
        name = self._draw(st.sampled_from(sorted(m.TIME_FIELDS)))
        read = Expression(f"now.{name}({zone})", m.MEMBER, strict(m.TIME_FIELDS[name], time))
        return self._compare(self._draw(st.sampled_from(ORDERS)), read, self._int_literal())

    # Numbers.

    def _numeric(self, depth: int, names: Names) -> Expression:
        expression = self._new_numeric(depth, names)
        if not self._in_macro and len(self.variables) < VARIABLES_MAX and self._number(31) == 0:
            return self._name(expression)
        return expression

    def _new_numeric(self, depth: int, names: Names) -> Expression:
        if depth <= 0:
            return self._number_literal() if self._number(1) else self._of(self._pick("int", "double"), names, self._number_literal)
        match self._number(5):
            case 0 | 1:
                return self._int_arithmetic(depth, names)
            case 2 | 3:
                return self._double_arithmetic(depth, names)
            case 4:
                return self._measure(names)
        kind = self._pick("int", "double")
        literal = self._int_literal if kind == "int" else self._double_literal
        then, otherwise = self._of(kind, names, literal), self._of(kind, names, literal)
        return self._choice(self._boolean(depth - 1, names), then, otherwise)

    def _int_arithmetic(self, depth: int, names: Names) -> Expression:
        operator = self._draw(st.sampled_from(sorted(m.INT_ARITHMETIC)))
        left = self._int_arithmetic(depth - 1, names) if depth > 1 else self._of("int", names, self._int_literal)
        if self._number(5) == 0:
            return self._unsigned(left)
        return self._arithmetic(operator, m.INT_ARITHMETIC, left, self._of("int", names, self._int_literal))

    def _double_arithmetic(self, depth: int, names: Names) -> Expression:
        operator = self._draw(st.sampled_from(sorted(m.DOUBLE_ARITHMETIC)))
        left = self._double_arithmetic(depth - 1, names) if depth > 1 else self._of("double", names, self._double_literal)
        return self._arithmetic(operator, m.DOUBLE_ARITHMETIC, left, self._of("double", names, self._double_literal))

    def _arithmetic(self, operator: str, table: Mapping[str, Callable[..., Any]], left: Expression, right: Expression) -> Expression:
        level = m.ADDITION if operator in "+-" else m.MULTIPLICATION
        return self._binary(operator, level, left, right, strict(table[operator], left, right))

    def _unsigned(self, number: Expression) -> Expression:
        """uint() and back: an error below zero."""
        return self._call("int", self._call("uint", number, meaning=strict(m.to_unsigned, number)), meaning=strict(m.to_unsigned, number))

    def _measure(self, names: Names) -> Expression:
        """Draw a number that is computed from another type: a size or a conversion."""
        match self._number(7):
            case 7:
                return self._total(names)
            case 6:
                return self._binding(self._of("int", names, self._int_literal))
            case 5:
                return self._method(m.TEXT_TO_INT, self._text(0, names))
            case 0:
                text = self._text(0, names)
                return self._call("size", text, meaning=strict(len, text))
            case 1:
                of = self._of("double", names, self._double_literal)
                return self._call("int", of, meaning=strict(m.truncate, of))
            case 2:
                of = self._of("int", names, self._int_literal)
                return self._call("double", of, meaning=strict(float, of))
            case 3:
                of = self._text(0, names)
                return self._call("int", of, meaning=strict(m.parse_int, of))
        many = [*self._of_kind.get("list", ()), *self._of_kind.get("map", ())]
        if not many:
            return self._int_literal()
        counted = self._variable(self._draw(st.sampled_from(many)))
        return self._call("size", counted, meaning=strict(len, counted))

    def _total(self, names: Names) -> Expression:
        """Draw the sum, or the smallest or largest element, of a list of ints or of a literal list of doubles."""
        function = self._pick("sum", "min", "max")
        lists = [of for of in self._of_kind.get("list", ()) if of.type.element is not None and of.type.element.kind == "int"]
        if lists and self._number(1):
            items = self._variable(self._draw(st.sampled_from(lists)))
        else:
            elements = [self._of("int", names, self._int_literal) for _ in range(1 + self._number(2))]
            text = f"[{', '.join(element.at(m.TERNARY) for element in elements)}]"
            items = Expression(text, m.MEMBER, strict(lambda *of: list(of), *elements), join_reads(*elements))
        return Expression(f"{items.text}.{function}()", m.MEMBER, strict(m.TOTALS[function], items), items.reads)

    def _binding(self, value: Expression) -> Expression:
        """Draw cel.bind() of an int, which its expression reads twice."""
        text = f"cel.bind(bound, {value.at(m.TERNARY)}, bound - bound{self._space()}+ bound)"
        return Expression(text, m.MEMBER, strict(lambda of: m.INT_ARITHMETIC["+"](m.INT_ARITHMETIC["-"](of, of), of), value), value.reads)

    # Texts.

    def _text(self, depth: int, names: Names) -> Expression:
        if depth <= 0:
            return self._text_literal() if self._number(2) == 0 else self._of("string", names, self._text_literal)
        match self._number(4):
            case 0:
                left, right = self._text(0, names), self._text(0, names)
                return self._binary("+", m.ADDITION, left, right, strict(lambda a, b: a + b, left, right))
            case 1:
                number = self._of("int", names, self._int_literal)
                return self._call("string", number, meaning=strict(str, number))
            case 2:
                return self._index(names)
            case 3:
                return self._method(m.TEXT_TO_TEXT, self._text(0, names))
        return self._choice(self._boolean(depth - 1, names), self._text(0, names), self._text(0, names))

    def _method(self, table: Mapping[str, Callable[[str], Any]], text: Expression) -> Expression:
        """Draw a method call on a text."""
        function = self._draw(st.sampled_from(sorted(table)))
        return Expression(f"{text.at(m.MEMBER)}.{function}", m.MEMBER, strict(table[function], text), text.reads)

    def _index(self, names: Names) -> Expression:
        """Draw a read of a list or map by index or key; an absent one is an error."""
        many = [
            of for kind in ("list", "map") for of in self._of_kind.get(kind, ()) if of.type.element and of.type.element.kind == "string"
        ]
        if not many:
            return self._text_literal()
        of = self._draw(st.sampled_from(many))
        whole = self._variable(of)
        index = self._number(2) if of.type.kind == "list" else self._draw(st.sampled_from(KEYS))
        text = f"{whole.text}[{index if isinstance(index, int) else self._quoted(index)}]"
        return Expression(text, m.MEMBER, strict(lambda items: items[index], whole), whole.reads)

    # Leaves.

    def _of(self, kind: str, names: Names, literal: Callable[[], Expression]) -> Expression:
        """Draw a variable of a kind, half of the time a macro's; sometimes a literal."""
        if names and self._number(1):
            local = self._local(kind, names)
            if local is not None:
                return local
        variables = self._of_kind.get(kind, ())
        if not variables or self._number(7) == 0:
            return literal()
        return self._variable(self._draw(st.sampled_from(variables)))

    def _local(self, kind: str, names: Names) -> Expression | None:
        ((name, type_),) = names.items()
        if type_.kind == kind:
            return Expression(name, m.MEMBER, lambda values: values[name])
        fields = [(field, required) for field, of, required in type_.fields if of.kind == kind]
        if not fields:
            return None
        field, required = self._draw(st.sampled_from(fields))
        path = f"{name}.{field}"
        return Expression(path, m.MEMBER, lambda values: values[name].get(field, ERROR), () if required else (path,))

    def _variable(self, variable: Variable) -> Expression:
        name = variable.name
        return Expression(name, m.MEMBER, lambda values: values.get(name, ERROR), variable.reads)

    def _constant(self, value: bool) -> Expression:
        return self._maybe_constant(value) or Expression("true" if value else "false", m.MEMBER, lambda values: value)

    def _maybe_constant(self, value: Any) -> Expression | None:
        """Return a value as a constant of the document, sometimes."""
        return self._as_constant(value) if self._number(7) == 0 else None

    def _as_constant(self, value: Any) -> Expression | None:
        """Return a value as a constant of the document; None if the document cannot hold it, or has constants enough."""
        name = f"c{len(self.constants)}"
        if not holds(value) or len(self.constants) == CONSTANTS_MAX:
            return None
        self.constants[name] = value
        root = self._pick("constants", "constants", f"({self._space()}constants{self._space()})")
        field = name if self._number(7) else f"`{name}`"
        meant = constant(value)
        return Expression(f"{root}{self._space()}.{self._space()}{field}", m.MEMBER, lambda values: meant)

    def _number_literal(self) -> Expression:
        match self._number(7):
            case 7:
                value = self._number(10)
                self.literals.add(value)
                return Expression(f"{value}u", m.MEMBER, lambda values: value)
            case 1 | 2 | 3:
                return self._int_literal()
        return self._double_literal()

    def _int_literal(self) -> Expression:
        value = self._draw(st.sampled_from(NUMBERS) | st.integers(-12, 32) | st.sampled_from([m.INT_MAX, m.INT_MIN]))
        self.literals.add(value)
        # The smallest integer has no literal: the minus is an operator.
        text = hex(value) if value >= 0 and self._number(9) == 0 else str(value)
        if value == m.INT_MIN:
            return Expression(f"({value + 1} - 1)", m.MEMBER, lambda values: value)
        return Expression(text, m.UNARY if value < 0 else m.MEMBER, lambda values: value)

    def _double_literal(self) -> Expression:
        value = self._draw(st.sampled_from(DOUBLES))
        self.literals.add(value)
        named = self._maybe_constant(value)
        if named is not None:
            return named
        return Expression(repr(value), m.UNARY if repr(value)[0] == "-" else m.MEMBER, lambda values: value)

    def _text_literal(self) -> Expression:
        value = self._draw(st.sampled_from(WORDS))
        self.literals.add(value)
        named = self._maybe_constant(value)
        if named is not None:
            return named
        return Expression(self._quoted(value), m.MEMBER, lambda values: value)

    def _quoted(self, text: str) -> str:
        """Return a string literal in one of CEL's forms."""
        plain = text.isprintable() and "\\" not in text and not set(text) & set("\"'")
        forms = [json.dumps(text, ensure_ascii=False)]
        if plain:
            forms += [f"'{text}'", f'"""{text}"""', f"'''{text}'''", f'r"{text}"', f"R'{text}'", f'r"""{text}"""']
        elif not set(text) & set("\"'\n") and not text.endswith("\\"):
            forms.append(f'r"{text}"')
        if text:
            forms.append('"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"')
        return str(self._draw(st.sampled_from(forms)))

    # Composition.

    def _both(self, left: Expression, right: Expression) -> Expression:
        return self._binary("&&", m.AND, left, right, m.both(left.meaning, right.meaning))

    def _either(self, left: Expression, right: Expression) -> Expression:
        return self._binary("||", m.OR, left, right, m.either(left.meaning, right.meaning))

    def _not(self, operand: Expression) -> Expression:
        return Expression(f"!{operand.at(m.MEMBER)}", m.UNARY, strict(lambda value: not value, operand), operand.reads)

    def _choice(self, condition: Expression, then: Expression, otherwise: Expression) -> Expression:
        text = f"{condition.at(m.OR)}{self._space()}?{self._space()}{then.at(m.OR)} : {otherwise.at(m.TERNARY)}"
        meaning = m.choice(condition.meaning, then.meaning, otherwise.meaning)
        return self._wrap(Expression(text, m.TERNARY, meaning, join_reads(condition, then, otherwise)))

    def _compare(self, operator: str, left: Expression, right: Expression) -> Expression:
        return self._binary(operator, m.RELATION, left, right, strict(m.COMPARISONS[operator], left, right))

    def _binary(self, operator: str, level: int, left: Expression, right: Expression, meaning: Meaning) -> Expression:
        gap = " " if operator in ("in", "-") else ""
        text = f"{left.at(level)}{self._space() or gap}{operator}{self._space() or gap}{right.at(level + 1)}"
        return self._wrap(Expression(text, level, meaning, join_reads(left, right)))

    def _call(self, function: str, argument: Expression, meaning: Meaning) -> Expression:
        return Expression(f"{function}({argument.at(m.TERNARY)})", m.MEMBER, meaning, argument.reads)

    def _wrap(self, expression: Expression) -> Expression:
        """Add parentheses that are not needed, sometimes."""
        if self._number(7):
            return expression
        return Expression(f"({self._space()}{expression.text}{self._space()})", m.MEMBER, expression.meaning, expression.reads)

    # Guards.

    def _maybe_guard(self, expression: Expression, names: Names) -> Expression:
        """Guard the reads of an expression half of the time; otherwise leave that to the expression around it."""
        return self._guard_reads(expression, lambda path: True) if expression.reads and self._number(1) else expression

    def _guard_reads(self, expression: Expression, wanted: Callable[[str], bool]) -> Expression:
        for path in reversed(expression.reads):
            if wanted(path):
                expression = self._guard(expression, path)
        return expression

    def _guard(self, expression: Expression, path: str) -> Expression:
        """Return the expression under a test of its longest optional path, in one of the forms that guard."""
        rest = tuple(read for read in expression.reads if read != path)
        local = "." in path and path.partition(".")[0] not in ("params", "facts")
        parents = () if local else tuple(read for read in rest if path.startswith(f"{read}."))
        tested = _local_test(path) if local else self._presence_test(path, parents)
        inner = Expression(expression.text, expression.level, expression.meaning, rest)
        match self._number(7):
            case 0 | 1 | 2:
                return self._both(tested, inner)
            case 3:
                return self._both(inner, tested)
            case 4:
                return self._either(self._not(tested), inner)
            case 5:
                return self._either(inner, self._not(tested))
            case 6:
                return self._choice(tested, inner, self._constant(False))
        return self._choice(self._not(tested), self._constant(self._draw(st.booleans())), inner)

    # Chance.

    def _number(self, most: int) -> int:
        return int(self._draw(st.integers(0, most)))

    def _pick(self, *of: str) -> str:
        return str(self._draw(st.sampled_from(of)))

    def _space(self) -> str:
        return str(self._draw(st.sampled_from(SPACES)))


def _local_test(path: str) -> Expression:
    """Return has() of a field of a macro's variable."""
    name, _, field = path.partition(".")
    return Expression(f"has({path})", m.MEMBER, lambda values: field in values[name])

"""The leaves of expressions: literals, and the names that the vocabulary, a macro or the document itself declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.documents import constant, holds
from tests.fuzz.grammar.composer import Chance
from tests.fuzz.meanings import ERROR, HISTORY, Expression, Meaning, Outcome
from tests.fuzz.vocabulary import DOUBLES, NUMBERS, WORDS, Counter, Type, Variable

CONSTANTS_MAX: Final = 8
VARIABLES_MAX: Final = 5

Names = Mapping[str, Type]  # of macros' variables


class Leaves:
    """Draws leaves over the names of one scope.

    `literals` collects the values that cases should come close to, `variables` the parts of conditions that became variables of the
    document, `constants` the literals that became its constants. Only conditions have `now`, and become variables of the document.
    """

    def __init__(self, chance: Chance, names: Iterable[Variable], counters: Sequence[Counter], *, are_conditions: bool = True) -> None:
        self._chance = chance
        self._counters = counters
        self.are_conditions = are_conditions
        self._of_kind: dict[str, list[Variable]] = {}
        for variable in names:
            self._of_kind.setdefault(variable.type.kind, []).append(variable)
        self.optional = [variable for variables in self._of_kind.values() for variable in variables if variable.name in variable.reads]
        self.literals: set[int | float | str] = set()
        self.variables: dict[str, str] = {}
        self.constants: dict[str, Any] = {}

    def of_kind(self, kind: str) -> Sequence[Variable]:
        """Return the vocabulary's variables of a kind."""
        return self._of_kind.get(kind, ())

    def may_name(self, names: Names) -> bool:
        """Report whether an expression may become a variable of the document: none reads a macro's variable."""
        return self.are_conditions and not names and len(self.variables) < VARIABLES_MAX

    def name(self, expression: Expression) -> Expression:
        """Make an expression a variable of the document; return its use."""
        name = f"v{len(self.variables)}"
        self.variables[name] = expression.text
        return Expression(name, m.MEMBER, expression.meaning, expression.reads)

    def leaf(self, kind: str, names: Names, literal: Callable[[], Expression]) -> Expression:
        """Draw a variable of a kind, half of the time a macro's; sometimes a literal."""
        if names and self._chance.number(1):
            local = self._local(kind, names)
            if local is not None:
                return local
        variables = self.of_kind(kind)
        if not variables or self._chance.number(7) == 0:
            return literal()
        counters = [counter for counter in self._counters if counter.type.kind == kind]
        if counters and self._chance.number(5) == 0:
            return self._counter(self._chance.draw(st.sampled_from(counters)))
        return self.variable(self._chance.draw(st.sampled_from(variables)))

    def _counter(self, counter: Counter) -> Expression:
        """Draw a read of a counter. Its key has no names of macros, and reads no counter itself."""
        space = self._chance.space
        read = f"history{space()}.{space()}{counter.name}{space()}"
        if not counter.has_groups:
            return Expression(f"{read}({space()})", m.MEMBER, lambda values: values[HISTORY](counter, ""))
        key = self.text_literal() if self._chance.number(3) == 0 else self.leaf("string", {}, self.text_literal)
        return Expression(f"{read}({space()}{key.at(m.TERNARY)}{space()})", m.MEMBER, _read(counter, key), key.reads)

    def _local(self, kind: str, names: Names) -> Expression | None:
        ((name, type_),) = names.items()
        if type_.kind == kind:
            return Expression(name, m.MEMBER, lambda values: values[name])
        fields = [(field, required) for field, of, required in type_.fields if of.kind == kind]
        if not fields:
            return None
        field, required = self._chance.draw(st.sampled_from(fields))
        path = f"{name}.{field}"
        return Expression(path, m.MEMBER, lambda values: values[name].get(field, ERROR), () if required else (path,))

    def variable(self, variable: Variable) -> Expression:
        """Return the use of a variable."""
        name = variable.name
        return Expression(name, m.MEMBER, lambda values: values.get(name, ERROR), variable.reads)

    def constant(self, value: bool) -> Expression:
        """Return a boolean, sometimes as a constant of the document."""
        return self._maybe_constant(value) or Expression("true" if value else "false", m.MEMBER, lambda values: value)

    def _maybe_constant(self, value: Any) -> Expression | None:
        """Return a value as a constant of the document, sometimes."""
        return self.as_constant(value) if self._chance.number(7) == 0 else None

    def as_constant(self, value: Any) -> Expression | None:
        """Return a value as a constant of the document; None if the document cannot hold it, or has constants enough."""
        name = f"c{len(self.constants)}"
        if not holds(value) or len(self.constants) == CONSTANTS_MAX:
            return None
        self.constants[name] = value
        root = self._chance.pick("constants", "constants", f"({self._chance.space()}constants{self._chance.space()})")
        field = name if self._chance.number(7) else f"`{name}`"
        meant = constant(value)
        return Expression(f"{root}{self._chance.space()}.{self._chance.space()}{field}", m.MEMBER, lambda values: meant)

    def number_literal(self) -> Expression:
        """Draw a literal of any number type."""
        match self._chance.number(7):
            case 7:
                value = self._chance.number(10)
                self.literals.add(value)
                return Expression(f"{value}u", m.MEMBER, lambda values: value)
            case 1 | 2 | 3:
                return self.int_literal()
        return self.double_literal()

    def int_literal(self) -> Expression:
        """Draw a literal of an int."""
        value = self._chance.draw(st.sampled_from(NUMBERS) | st.integers(-12, 32) | st.sampled_from([m.INT_MAX, m.INT_MIN]))
        self.literals.add(value)
        # The smallest integer has no literal: the minus is an operator.
        text = hex(value) if value >= 0 and self._chance.number(9) == 0 else str(value)
        if value == m.INT_MIN:
            return Expression(f"({value + 1} - 1)", m.MEMBER, lambda values: value)
        return Expression(text, m.UNARY if value < 0 else m.MEMBER, lambda values: value)

    def double_literal(self) -> Expression:
        """Draw a literal of a double, or a constant."""
        value = self._chance.draw(st.sampled_from(DOUBLES))
        self.literals.add(value)
        named = self._maybe_constant(value)
        if named is not None:
            return named
        return Expression(repr(value), m.UNARY if repr(value)[0] == "-" else m.MEMBER, lambda values: value)

    def text_literal(self) -> Expression:
        """Draw a literal of a string, or a constant."""
        value = self._chance.draw(st.sampled_from(WORDS))
        self.literals.add(value)
        named = self._maybe_constant(value)
        if named is not None:
            return named
        return Expression(self.quoted(value), m.MEMBER, lambda values: value)

    def quoted(self, text: str) -> str:
        """Return a string literal in one of CEL's forms."""
        plain = text.isprintable() and "\\" not in text and not set(text) & set("\"'")
        forms = [json.dumps(text, ensure_ascii=False)]
        if plain:
            forms += [f"'{text}'", f'"""{text}"""', f"'''{text}'''", f'r"{text}"', f"R'{text}'", f'r"""{text}"""']
        elif not set(text) & set("\"'\n") and not text.endswith("\\"):
            forms.append(f'r"{text}"')
        if text:
            forms.append('"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"')
        return str(self._chance.draw(st.sampled_from(forms)))


def _read(counter: Counter, key: Expression) -> Meaning:
    """Return the meaning of a read of a counter with groups: a key that fails fails the read."""

    def meaning(values: m.Values) -> Any:
        group = key.meaning(values)
        return group if isinstance(group, Outcome) else values[HISTORY](counter, group)

    return meaning

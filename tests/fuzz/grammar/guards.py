"""The forms that guard a read of an optional value with has()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st

from tests.fuzz import meanings as m
from tests.fuzz.grammar.composer import Chance, Composer
from tests.fuzz.grammar.leaves import Leaves
from tests.fuzz.meanings import ERROR, Expression

# The first names of optional paths that no macro binds.
_ROOTS: Final = ("params", "facts", "execution")


class Guards:
    """Guards the optional reads of expressions."""

    def __init__(self, chance: Chance, composer: Composer, leaves: Leaves) -> None:
        self._chance = chance
        self._composer = composer
        self._leaves = leaves

    def guard_value(self, expression: Expression, otherwise: Callable[[], Expression]) -> Expression:
        """Return a value that is another one where an optional value that it reads is absent."""
        for path in reversed(expression.reads):
            rest = tuple(read for read in expression.reads if read != path)
            tested = self.presence_test(path, tuple(read for read in rest if path.startswith(f"{read}.")))
            inner = Expression(expression.text, expression.level, expression.meaning, rest)
            expression = self._composer.choose(tested, inner, otherwise())
        return expression

    def presence_test(self, path: str, reads: tuple[str, ...]) -> Expression:
        """Return has() of a path; `reads` are the optional paths on the way to it."""
        parent = path.rpartition(".")[0]
        root = "." not in parent and parent in ("params", "facts")

        def meaning(values: m.Values) -> Any:
            if not root and parent not in values:
                return ERROR
            return path in values

        return Expression(f"has({self._chance.space()}{path}{self._chance.space()})", m.MEMBER, meaning, reads)

    def maybe_guard(self, expression: Expression) -> Expression:
        """Guard the reads of an expression half of the time; otherwise leave that to the expression around it."""
        return self.guard_reads(expression, lambda path: True) if expression.reads and self._chance.number(1) else expression

    def guard_reads(self, expression: Expression, wanted: Callable[[str], bool]) -> Expression:
        """Guard the reads of an expression whose paths are wanted."""
        for path in reversed(expression.reads):
            if wanted(path):
                expression = self._guard(expression, path)
        return expression

    def _guard(self, expression: Expression, path: str) -> Expression:
        """Return the expression under a test of its longest optional path, in one of the forms that guard."""
        rest = tuple(read for read in expression.reads if read != path)
        local = "." in path and path.partition(".")[0] not in _ROOTS
        parents = () if local else tuple(read for read in rest if path.startswith(f"{read}."))
        tested = _local_test(path) if local else self.presence_test(path, parents)
        inner = Expression(expression.text, expression.level, expression.meaning, rest)
        match self._chance.number(7):
            case 0 | 1 | 2:
                return self._composer.both(tested, inner)
            case 3:
                return self._composer.both(inner, tested)
            case 4:
                return self._composer.either(self._composer.negate(tested), inner)
            case 5:
                return self._composer.either(inner, self._composer.negate(tested))
            case 6:
                return self._composer.choose(tested, inner, self._leaves.constant(False))
        return self._composer.choose(self._composer.negate(tested), self._leaves.constant(self._chance.draw(st.booleans())), inner)


def _local_test(path: str) -> Expression:
    """Return has() of a field of a macro's variable."""
    name, _, field = path.partition(".")
    return Expression(f"has({path})", m.MEMBER, lambda values: field in values[name])

"""The reference engine: CEL's own evaluator, on the conditions as their authors wrote them.

All conditions of an action, and the guards of its Rete network, are elements of one list expression, because one evaluation costs
far less than many. One error makes the whole list an error; then each expression is evaluated by itself, to find the one that fails.
The library returns errors as values, which are true in Python, so only a real bool counts as an answer. Past its limit of iterations
it raises instead.

The `plain_value` of cel-expr-python 0.1.3 returns None without counting the reference, which kills a Python 3.11 process after some
thousand times. So only values whose type excludes null are taken whole: see `_plain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cel_expr_python import cel

from gavel_rules.errors import CaseError
from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.vocabulary import PRESENCE_MAPS
from gavel_rules.language.engines.lowering import Guard
from gavel_rules.values import size_of

LIST_LENGTH_MAX: Final = 40_000  # code points; the library takes 100,000
GUARD_LENGTH: Final = 400  # code points around a guard, for the tests of its optional values
# A program's evaluations share an arena, which keeps their results, usually below 1 KB each, until the next arena replaces it. An agent
# may send a megabyte, so an evaluation with longer texts, or values with more parts (`size_of`), has an arena of its own.
ARENA_EVALUATIONS_MAX: Final = 16
ARENA_TEXT_LENGTH_MAX: Final = 4_096
ARENA_PARTS_MAX: Final = 256

Values = dict[str, object]


class Program:
    """Expressions of one environment, evaluated together while none fails.

    Conditions and guards, which give bools, may share the values of variables. Each value is then computed at most once, and once more if
    an expression fails.
    """

    def __init__(self, environment: Environment, sources: Sequence[str], *, are_conditions: bool = False) -> None:
        self._environment = environment
        self._sources = tuple(sources)
        self._singles: list[Any] = [None] * len(sources)
        lists = [f"[{','.join(chunk)}]" for chunk in _chunks(self._sources)]
        self._shares = are_conditions and bool(environment.shared) and len(lists) == 1
        self._lists = [environment.compile_together(text) if self._shares else environment.compile(text) for text in lists]
        # Guards give a bool, "" or an error, whatever the checker knows of their types.
        self._excludes_null = are_conditions or all(one.return_type().name() in _LISTS_WITHOUT_NULL for one in self._lists)
        self._outcomes: Any = None
        self._arena: Any = None
        self._arena_left = 0

    def evaluate_all(self, values: Values) -> list[object] | None:
        """Return all results; None if an expression fails, or the library cannot take the values."""
        if not self._lists:
            return []
        try:
            if len(self._lists) == 1:
                # Arguments by name, or a missing arena, cost as much as another condition.
                answer = self._lists[0].eval(None, values, None, cel.Arena() if _are_large(values) else self._shared_arena())
                results = answer.plain_value() if self._excludes_null else _plain(answer)
                return results if type(results) is list else None
            activation = self._environment.activation(values)
            results = []
            for expression in self._lists:
                part = _plain(expression.eval(activation))
                if type(part) is not list:
                    return None
                results.extend(part)
        except RuntimeError:  # also the limit of iterations, which no operand absorbs
            return None
        return results

    def _shared_arena(self) -> Any:
        """Return the arena that the next evaluations share."""
        if not self._arena_left:
            self._arena = cel.Arena()
            self._arena_left = ARENA_EVALUATIONS_MAX
        self._arena_left -= 1
        return self._arena

    def evaluate_each(self, values: Values) -> list[object]:
        """Return the result of each expression, None for one that fails. Raises CaseError if the library cannot take the values."""
        if self._shares:
            outcomes = self._evaluate_outcomes(values)
            if outcomes is not None:
                return outcomes
        try:
            activation = self._environment.activation(values)
        except RuntimeError as error:
            raise CaseError(f"CEL cannot take the case: {error}") from error
        return [self._single(index, activation) for index in range(len(self._sources))]

    def _evaluate_outcomes(self, values: Values) -> list[object] | None:
        """Return the bool of each expression, None for one that fails or gives another value; None for all past a limit of the library."""
        if self._outcomes is None:
            self._outcomes = self._environment.compile_together(f"[{','.join(self._sources)}]", as_outcomes=True)
        try:
            answer = self._outcomes.eval(self._environment.activation(values)).plain_value()
        except RuntimeError:
            return None
        if type(answer) is not list:
            return None
        return [_OUTCOMES.get((answer[index], answer[index + 1])) for index in range(0, len(answer), 2)]

    def _single(self, index: int, activation: Any) -> object:
        if self._singles[index] is None:
            self._singles[index] = self._environment.compile(f"[{self._sources[index]}]")
        try:
            answer = _plain(self._singles[index].eval(activation))
        except RuntimeError:
            return None
        return answer[0] if type(answer) is list else None


_LISTS_WITHOUT_NULL: Final = frozenset({"LIST<BOOL>", "LIST<INT>", "LIST<UINT>", "LIST<DOUBLE>", "LIST<STRING>"})


def _plain(answer: Any) -> object:
    """Return a value of the library as Python's, converted part by part."""
    kind = answer.type().name().partition("<")[0]
    if kind == "NULL":
        return None
    if kind == "LIST":
        return [_plain(item) for item in answer.value()]
    if kind == "MAP":
        return {key: _plain(value) for key, value in answer.value().items()}
    return answer.plain_value()


def _are_large(values: Values) -> bool:
    """Report whether values are too large for a shared arena."""
    for value in values.values():
        if isinstance(value, str):
            if len(value) > ARENA_TEXT_LENGTH_MAX:
                return True
        elif isinstance(value, (list, dict)) and size_of(value) > ARENA_PARTS_MAX:
            return True
    return False


# By "it is not false" and "it is not true".
_OUTCOMES: Final = {(True, False): True, (False, True): False}


def condition_source(source: str) -> str:
    """Return a condition as an element of a list. The newline ends a comment in it."""
    return f"({source}\n)"


def guard_source(guard: Guard) -> str:
    """Return a guard as an element of a list: not a bool if an optional value that it reads is absent, an error if it is no bool.

    The guard is nested no deeper than its condition is when it is checked (`Environment.check`).
    """
    if not guard.required_paths:
        return f"({guard.source}\n) ? true : false"
    tests = " && ".join(f"has({PRESENCE_MAPS[root]}.{rest})" for root, _, rest in (path.partition(".") for path in guard.required_paths))
    return f'!({tests}) ? dyn("") : ({guard.source}\n) ? dyn(true) : dyn(false)'


def _chunks(sources: Sequence[str]) -> list[list[str]]:
    chunks: list[list[str]] = []
    length = LIST_LENGTH_MAX
    for source in sources:
        length += len(source) + 1
        if length > LIST_LENGTH_MAX:
            chunks.append([])
            length = len(source) + 1
        chunks[-1].append(source)
    return chunks

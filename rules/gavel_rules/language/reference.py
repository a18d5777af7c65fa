"""The second engine: CEL's own evaluator, asked about the conditions as their authors wrote them.

All conditions of an action, and the guards that the Rete network needs, are elements of one list expression, for one
evaluation costs far less than many. One error makes the whole list an error; then each is asked alone, to say which.
An error is a value in the library, and true in Python: only a real bool counts as an answer. Over its limit of iterations
the library raises instead.

No expression here may come out as null, or as something that holds null: cel-expr-python 0.1.3 gives Python's None away
without counting it, which kills a Python 3.11 process after some thousand times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cel_expr_python import cel

from gavel_rules.errors import CaseError
from gavel_rules.language.conditions import Environment
from gavel_rules.language.lowering import Guard
from gavel_rules.language.vocabulary import PRESENCE_MAPS
from gavel_rules.values import size_of

LIST_LENGTH_MAX: Final = 40_000  # code points; the library takes 100,000
# An arena keeps what its evaluations have made, below 1 KB each as a rule, until the next one takes its place. Each program has one, and
# an agent may send a megabyte: where a text is longer, or a value has more parts (`size_of`), the evaluation gets one of its own.
ARENA_EVALUATIONS_MAX: Final = 16
ARENA_TEXT_LENGTH_MAX: Final = 4_096
ARENA_PARTS_MAX: Final = 256

Values = dict[str, object]


class Program:
    """Some expressions of one vocabulary, evaluated together where none errs."""

    def __init__(self, environment: Environment, sources: Sequence[str]) -> None:
        self._environment = environment
        self._sources = tuple(sources)
        self._singles: list[Any] = [None] * len(sources)
        self._lists = [environment.compile(f"[{','.join(chunk)}]") for chunk in _chunks(self._sources)]
        self._arena: Any = None
        self._arena_left = 0

    def together(self, values: Values) -> list[object] | None:
        """Return all values, None when any of them errs, or the library cannot take the values at all."""
        if not self._lists:
            return []
        try:
            if len(self._lists) == 1:
                # By position: to find arguments by name costs the library as much as a condition. So does to find that no arena is given.
                answer = self._lists[0].eval(None, values, None, cel.Arena() if _are_large(values) else self._shared()).plain_value()
                return answer if type(answer) is list else None
            activation = self._environment.activation(values)
            together: list[object] = []
            for expression in self._lists:
                answer = expression.eval(activation).plain_value()
                if type(answer) is not list:
                    return None
                together.extend(answer)
        except RuntimeError:  # among others: the limit of iterations, which no other operand absorbs
            return None
        return together

    def _shared(self) -> Any:
        """Return the arena that some evaluations share."""
        if not self._arena_left:
            self._arena = cel.Arena()
            self._arena_left = ARENA_EVALUATIONS_MAX
        self._arena_left -= 1
        return self._arena

    def apart(self, values: Values) -> list[object]:
        """Return each expression's value by itself, None for one that errs; CaseError for values that the library cannot take."""
        try:
            activation = self._environment.activation(values)
        except RuntimeError as error:
            raise CaseError(f"CEL cannot take the case: {error}") from error
        return [self._single(index, activation) for index in range(len(self._sources))]

    def _single(self, index: int, activation: Any) -> object:
        if self._singles[index] is None:
            self._singles[index] = self._environment.compile(f"[{self._sources[index]}]")
        try:
            answer = self._singles[index].eval(activation).plain_value()
        except RuntimeError:
            return None
        return answer[0] if type(answer) is list else None


def _are_large(values: Values) -> bool:
    """Whether an arena had better not keep what is made of these values."""
    for value in values.values():
        if isinstance(value, str):
            if len(value) > ARENA_TEXT_LENGTH_MAX:
                return True
        elif isinstance(value, (list, dict)) and size_of(value) > ARENA_PARTS_MAX:
            return True
    return False


def condition_source(source: str) -> str:
    """Return a condition as an element of a list. A comment at its end must not swallow what follows."""
    return f"({source}\n)"


def guard_source(guard: Guard) -> str:
    """Return a guard as an element of a list: no bool where an optional value that it reads is absent."""
    if not guard.needs:
        return condition_source(guard.source)
    tests = " && ".join(f"has({PRESENCE_MAPS[root]}.{rest})" for root, _, rest in (path.partition(".") for path in guard.needs))
    return f'({tests} ? dyn(({guard.source}\n)) : dyn(""))'


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

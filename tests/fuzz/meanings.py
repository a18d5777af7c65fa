"""The meaning of conditions: CEL's semantics in plain Python, for the part of CEL that the fuzz writes.

Every expression of the fuzz carries its meaning, a function from the values of a case to its own value. It uses neither the CEL library nor
the compiler, so it finds mistakes that both engines share, for example in a guard, which is CEL in both. Where Python and CEL legitimately
differ (regular expressions), a meaning is UNKNOWN, and only the engines are compared.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

Values = Mapping[str, Any]  # by dotted name, without absent values; what counters give by HISTORY
Meaning = Callable[[Values], Any]

# The name of a function from a counter and its key to a number, among the values.
HISTORY: Final = "history"

INT_MAX: Final = 2**63 - 1
INT_MIN: Final = -(2**63)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Precedences of CEL's grammar; a higher one binds tighter.
TERNARY, OR, AND, RELATION, ADDITION, MULTIPLICATION, UNARY, MEMBER = range(8)


class Outcome:
    """An outcome other than a value: ERROR, or UNKNOWN where this module has no opinion."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ERROR: Final = Outcome("ERROR")
UNKNOWN: Final = Outcome("UNKNOWN")


@dataclass(frozen=True, slots=True)
class Expression:
    """CEL text with its precedence and meaning. `reads` are the optional paths that must be tested around it, shortest first."""

    text: str
    level: int
    meaning: Meaning
    reads: tuple[str, ...] = ()

    def at(self, level: int) -> str:
        """Return the text, in parentheses if it binds less than `level`."""
        return self.text if self.level >= level else f"({self.text})"


def join_reads(*parts: Expression) -> tuple[str, ...]:
    """Return the optional paths that any of the parts reads."""
    return tuple(sorted({path for part in parts for path in part.reads}, key=lambda path: (path.count("."), path)))


def strict(function: Callable[..., Any], *operands: Expression) -> Meaning:
    """Return the meaning of a strict function. Its ArithmeticError and LookupError are CEL's errors."""

    def meaning(values: Values) -> Any:
        arguments = [operand.meaning(values) for operand in operands]
        if ERROR in arguments:
            return ERROR
        if UNKNOWN in arguments:
            return UNKNOWN
        try:
            return function(*arguments)
        except (ArithmeticError, LookupError):
            return ERROR

    return meaning


def both(left: Meaning, right: Meaning) -> Meaning:
    """&&: false absorbs an error of the other side."""
    return lambda values: conjunction([left(values), right(values)])


def either(left: Meaning, right: Meaning) -> Meaning:
    """||: true absorbs an error of the other side."""
    return lambda values: disjunction([left(values), right(values)])


def conjunction(outcomes: Sequence[Any]) -> Any:
    """Return the conjunction of outcomes, also for `all` over a list."""
    return _absorb(outcomes, False)


def disjunction(outcomes: Sequence[Any]) -> Any:
    """Return the disjunction of outcomes, also for `exists` over a list."""
    return _absorb(outcomes, True)


def _absorb(outcomes: Sequence[Any], decisive: bool) -> Any:
    for outcome in (decisive, UNKNOWN, ERROR):
        if any(other is outcome for other in outcomes):
            return outcome
    return not decisive


def choice(condition: Meaning, then: Meaning, otherwise: Meaning) -> Meaning:
    """?:: only the chosen branch counts."""

    def meaning(values: Values) -> Any:
        chosen = condition(values)
        return chosen if isinstance(chosen, Outcome) else then(values) if chosen else otherwise(values)

    return meaning


def same(left: Any, right: Any) -> bool:
    """CEL's equality: numbers by value whatever their type, a bool is not a number, other types are never equal."""
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    left, right = _to_common_type(left, right)
    return bool(left == right)


def _to_common_type(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two numbers as CEL compares them: an int that meets a double becomes the nearest double, which is exact up to 2^53."""
    if isinstance(left, float) and isinstance(right, int):
        return left, float(right)
    if isinstance(left, int) and isinstance(right, float):
        return float(left), right
    return left, right


def contains(item: Any, items: Sequence[Any]) -> bool:
    """CEL's `in` for a list."""
    return any(same(item, other) for other in items)


def _ordering(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    return lambda left, right: bool(compare(*_to_common_type(left, right)))


COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": same,
    "!=": lambda left, right: not same(left, right),
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
}


def to_int(number: int) -> int:
    """Return an int of CEL. Raises OverflowError beyond 64 bits."""
    if not INT_MIN <= number <= INT_MAX:
        raise OverflowError
    return number


def quotient(left: int, right: int) -> int:
    """CEL's int division: towards zero."""
    magnitude = abs(left) // abs(right)
    return to_int(magnitude if (left < 0) is (right < 0) else -magnitude)


def remainder(left: int, right: int) -> int:
    """CEL's %: with the sign of the left side. An overflow of the division is an error here too."""
    return left - right * quotient(left, right)


def ratio(left: float, right: float) -> float:
    """IEEE division, which never fails."""
    if right != 0:
        return left / right
    if left == 0 or left != left:
        return float("nan")
    negative = (str(left)[0] == "-") is not (str(right)[0] == "-")
    return float("-inf") if negative else float("inf")


INT_ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda left, right: to_int(left + right),
    "-": lambda left, right: to_int(left - right),
    "*": lambda left, right: to_int(left * right),
    "/": quotient,
    "%": remainder,
}


def total(numbers: Sequence[int]) -> int:
    """sum() of ints: an error as soon as an int cannot hold it."""
    result = 0
    for number in numbers:
        result = to_int(result + number)
    return result


def extreme(choose: Callable[[Sequence[int]], int]) -> Callable[[Sequence[int]], int]:
    """min() or max() of ints: an error for an empty list."""

    def of(numbers: Sequence[int]) -> int:
        if not numbers:
            raise LookupError
        return choose(numbers)

    return of


TOTALS: Final[Mapping[str, Callable[[Sequence[int]], int]]] = {"sum": total, "min": extreme(min), "max": extreme(max)}
DOUBLE_ARITHMETIC: Final[Mapping[str, Callable[[float, float], float]]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": ratio,
}


def truncate(number: float) -> int:
    """int() of a double: towards zero. Raises OverflowError if an int cannot hold it."""
    if number != number or not -(2.0**63) < number < 2.0**63:
        raise OverflowError
    return int(number)


def to_unsigned(number: int) -> int:
    """uint() of an int."""
    if number < 0:
        raise OverflowError
    return number


TIME_FIELDS: Final[Mapping[str, Callable[[datetime], int]]] = {
    "getFullYear": lambda time: time.year,
    "getMonth": lambda time: time.month - 1,
    "getDate": lambda time: time.day,
    "getDayOfMonth": lambda time: time.day - 1,
    "getDayOfWeek": lambda time: time.isoweekday() % 7,
    "getDayOfYear": lambda time: time.timetuple().tm_yday - 1,
    "getHours": lambda time: time.hour,
    "getMinutes": lambda time: time.minute,
    "getSeconds": lambda time: time.second,
    "getMilliseconds": lambda time: time.microsecond // 1000,
}


def shift(time: datetime, minutes: int) -> datetime:
    """Return the wall clock at a fixed offset."""
    return time + timedelta(minutes=minutes)


def _ascii(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(character) if character.isascii() else character for character in text)


def _substring(text: str, start: int, end: int) -> str:
    if max(start, end) > len(text):
        raise IndexError
    return text[start:end]


# Functions of a text, with their arguments in CEL's notation.
TEXT_TO_TEXT: Final[Mapping[str, Callable[[str], Any]]] = {
    "lowerAscii()": _ascii(str.lower),
    "upperAscii()": _ascii(str.upper),
    "replace('a', 'bb')": lambda text: text.replace("a", "bb"),
    "split('a').join('-')": lambda text: text.replace("a", "-"),
    "reverse()": lambda text: text[::-1],
    "charAt(0)": lambda text: text[:1],
    "substring(1)": lambda text: _substring(text, 1, len(text)),
    # The library fails if the end is the length of the text, which CEL allows (docs/rule-language.md tells authors).
    "substring(0, 2)": lambda text: _substring(text, 0, 2) if len(text) != 2 else ERROR,
    # The library defines white space beyond ASCII.
    "trim()": lambda text: text.strip(" \t\n") if text.isascii() and text.isprintable() else UNKNOWN,
}
TEXT_TO_INT: Final[Mapping[str, Callable[[str], int]]] = {
    "indexOf('a')": lambda text: text.find("a"),
    'lastIndexOf("1")': lambda text: text.rfind("1"),
    "split('a').size()": lambda text: len(text.split("a")),
}


def outcomes_of(items: Meaning, name: str, body: Meaning) -> Meaning:
    """Return the outcome of a macro's body for each item."""

    def meaning(values: Values) -> Any:
        elements = items(values)
        return elements if isinstance(elements, Outcome) else [body({**values, name: item}) for item in elements]

    return meaning


def quantify(macro: str, outcomes: Meaning) -> Meaning:
    """Return the meaning of all, exists or exists_one. Only the last one does not absorb errors."""

    def meaning(values: Values) -> Any:
        answers = outcomes(values)
        if isinstance(answers, Outcome):
            return answers
        if macro == "all":
            return conjunction(answers)
        if macro == "exists":
            return disjunction(answers)
        return _worst(answers) or answers.count(True) == 1

    return meaning


def matching_items(items: Meaning, outcomes: Meaning) -> Meaning:
    """Return the meaning of filter."""

    def meaning(values: Values) -> Any:
        answers = outcomes(values)
        if isinstance(answers, Outcome):
            return answers
        return _worst(answers) or [item for item, is_match in zip(items(values), answers, strict=True) if is_match]

    return meaning


def map_items(outcomes: Meaning) -> Meaning:
    """Return the meaning of map."""

    def meaning(values: Values) -> Any:
        answers = outcomes(values)
        return answers if isinstance(answers, Outcome) else _worst(answers) or answers

    return meaning


def _worst(answers: Sequence[Any]) -> Outcome | None:
    return next((outcome for outcome in (UNKNOWN, ERROR) if any(one is outcome for one in answers)), None)


def parse_int(text: str) -> int:
    """Return int() of a string."""
    if not re.fullmatch("-?[0-9]+", text):
        raise ArithmeticError
    return to_int(int(text))

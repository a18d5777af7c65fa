"""Reads of counters in expressions: `history.NAME(key)` becomes a variable that both engines read as a plain number.

A read is replaced by a variable with spaces up to the length of the read (`History.ab0`), so every place in the text stays right. Reads of
the same counter with the same key share a variable. Before an expression is evaluated, arbitration evaluates the keys and looks up the
counters; a read whose key has no value leaves its variable absent, as an absent fact does.
"""

from __future__ import annotations

import string
import zlib
from typing import Final, NamedTuple

from gavel_rules.language.cel.tokens import closing_offset, has_code
from gavel_rules.language.cel.vocabulary import COUNTER_READS

# Different keys with which the expressions of an action may read one counter.
KEYS_PER_COUNTER_MAX: Final = 36
# Different reads by the expressions of an action. A decision records each of them, and an event holds at most 1 MiB.
READS_PER_ACTION_MAX: Final = 1_152

# A variable is no longer than the shortest read, `history.n()`. It does not spell the counter: CEL copies the name of each value several
# times, which takes memory of its own beyond 15 bytes. It ends in a digit, so it is no word that CEL reserves. Its first letter tells the
# kind of its number: `History.ab0` is an int, `History.Ab0` a double. Versions of a document never use one name for both.
_OF_INT: Final = string.ascii_lowercase
_OF_DOUBLE: Final = string.ascii_uppercase
_SECOND: Final = string.ascii_letters + string.digits
_NAMES: Final = len(_OF_INT) * len(_SECOND) * 10


class CounterRead(NamedTuple):
    """A counter that an action reads with a key. `key` is a CEL expression as the library is given it, "" for a counter without groups."""

    counter: str
    key: str
    variable: str


class ReadPlace(NamedTuple):
    """The place of a read in a text."""

    counter: str
    start: int
    opening: int  # of its parenthesis


class CounterReads:
    """The reads of one action."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], CounterRead] = {}
        self._variables: set[str] = set()

    def all(self) -> tuple[CounterRead, ...]:
        """Return the reads in the order in which they were found."""
        return tuple(self._by_key.values())

    def add(self, text: str, place: ReadPlace, kind: str) -> tuple[CounterRead, bool] | None:
        """Add the read at a place, of a number of a kind. Return it, and whether it is new; None if the action has too many reads."""
        closing = closing_offset(text, place.opening)
        key = text[place.opening + 1 : closing].strip() if has_code(text, place.opening + 1, closing) else ""
        known = self._by_key.get((place.counter, key))
        if known is not None:
            return known, False
        number = sum(1 for counter, _ in self._by_key if counter == place.counter)
        if number >= KEYS_PER_COUNTER_MAX or len(self._by_key) >= READS_PER_ACTION_MAX:
            return None
        variable = self._choose_variable(place.counter, key, kind)
        self._variables.add(variable)
        read = CounterRead(place.counter, key, variable)
        self._by_key[place.counter, key] = read
        return read, True

    def _choose_variable(self, counter: str, key: str, kind: str) -> str:
        """Return a variable that depends on the read alone, unless another read has it: versions of a document mostly agree on it."""
        letters = _OF_INT if kind == "int" else _OF_DOUBLE
        number = zlib.crc32(f"{counter}({key})".encode()) % _NAMES
        while (variable := _variable(letters, number)) in self._variables:
            number = (number + 1) % _NAMES
        return variable

    @staticmethod
    def replace(text: str, place: ReadPlace, read: CounterRead) -> str:
        """Return the text with the read at a place replaced by its variable, and spaces to its length. Line breaks stay."""
        end = closing_offset(text, place.opening) + 1
        rest = text[place.start + len(read.variable) : end]
        return text[: place.start] + read.variable + "".join("\n" if character == "\n" else " " for character in rest) + text[end:]


def _variable(letters: str, number: int) -> str:
    rest, digit = divmod(number, 10)
    first, second = divmod(rest, len(_SECOND))
    return f"{COUNTER_READS}.{letters[first]}{_SECOND[second]}{digit}"

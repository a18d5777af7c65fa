"""What searching a text with a regular expression costs at worst.

The CEL library searches with RE2: never exponential, but not free either. RE2 makes a deterministic automaton as it goes, and
falls back on stepping through every position of the pattern for every byte where that automaton grows too fast: a pattern of
some thousand positions then takes half a second and more for 64 KiB (measured: `a.{1000}c` 0.4 s, `(a?){1000}c` 0.9 s). So the
bound grows with the positions of the pattern, counted repetitions written out, times the bytes of the text. It is small where
the automaton can only be small, and where a pattern that is anchored at the start has given up after few characters. How large
the automaton gets is found by making it, for a pattern that is a plain row of characters and classes, as most are.

Patterns are only measured here, never matched; what RE2 would not compile is measured all the same.
"""

from __future__ import annotations

import re
import string
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

# Steps, of about a nanosecond each; measured on one core of a small server, rounded up.
COMPILE_STEPS: Final = 6_000
COMPILE_POSITION_STEPS: Final = 500
STATE_STEPS: Final = 2_000  # making one state of the automaton
FALLBACK_STEPS: Final = 300  # of a byte, where nearly each makes a state, or the automaton is given up
FALLBACK_POSITION_STEPS: Final = 24  # of a byte and a position
BYTE_STEPS: Final = 4

CODE_POINT_BYTES: Final = 4
_REPETITIONS: Final = 1_000  # RE2 refuses more
_UNBOUNDED_STATES: Final = 30  # two to this power is more than any text makes
_STATES_MADE: Final = 200  # of an automaton that is made here
_FLAGGED: Final = 4  # the library may tell some states apart that are one here, by flags

_TOKEN: Final = re.compile(
    r"""(?P<quoted>\\Q(?:(?!\\E)[\s\S])*(?:\\E)?)"""
    r"""|(?P<category>\\[pP](?:\{[^}]*\}|.))"""
    r"""|(?P<code>\\x\{[0-9A-Fa-f]*\}|\\x[0-9A-Fa-f]{2}|\\[0-7]{1,3})"""
    r"""|(?P<negated>\\[DWSC])"""
    r"""|(?P<escape>\\[\s\S]?)"""
    r"""|(?P<many>\[\^?\]?(?:\[:\^?\w+:\]|\\[\s\S]|[^\]\\])*\]?)"""
    r"""|(?P<repeat>\{(?P<low>\d+)(?P<comma>,(?P<high>\d*))?\}\??|[*+?]\??)"""
    r"""|(?P<flags>\(\?[A-Za-z-]+\))|(?P<open>\((?:\?P?<[^>]*>|\?[A-Za-z-]*:)?)|(?P<close>\))|(?P<either>\|)|(?P<any>[.])|(?P<plain>[\s\S])"""
)
_CATEGORY: Final = 100  # a class of Unicode, as ranges of bytes
_SEVERAL: Final = 3  # any character, or any but some


class Part(NamedTuple):
    """A piece of a pattern: its positions, those among them that read something, and the characters that it matches at most."""

    positions: int = 0
    readers: int = 0
    characters: int = 0

    def and_then(self, other: Part) -> Part:
        """Return the piece that is this one and another behind it."""
        return Part(self.positions + other.positions, self.readers + other.readers, self.characters + other.characters)

    def repeated(self, times: int) -> Part:
        """Return the piece written out so many times."""
        return Part((self.positions + 1) * times, self.readers * times, self.characters * times)


class Pattern(NamedTuple):
    """A measured pattern: the whole, and what stands before anything that repeats without end.

    `longest` is how many characters a text has at most that a pattern matches which is anchored at both ends; None: nobody knows.
    """

    whole: Part
    head: Part
    anchored: bool  # at the start of the text
    longest: int | None
    states: int | None = None  # of the automaton; None: not made

    def steps(self, text_bytes: float, searches: float) -> float:
        """Return what some searches through texts of so many bytes in all cost at worst."""
        steps = searches * (COMPILE_STEPS + COMPILE_POSITION_STEPS * self.whole.positions) + BYTE_STEPS * text_bytes
        if not self.anchored:
            return steps + self._scan(text_bytes, searches, self.whole.readers)
        # When the head is behind, only what comes after it is left to make states of, or else the search is over.
        head_bytes = min(text_bytes, searches * self.head.characters * CODE_POINT_BYTES)
        tail = self.whole.readers - self.head.readers
        return steps + self._scan(head_bytes, searches, self.whole.readers) + self._scan(text_bytes if tail else 0, searches, tail)

    def _scan(self, text_bytes: float, searches: float, readers: int) -> float:
        of_byte = FALLBACK_STEPS + FALLBACK_POSITION_STEPS * self.whole.positions
        # A state is a set of places where the search may stand, and one of few ways to have come there.
        states = 1 << min(readers + 2, _UNBOUNDED_STATES)
        if self.states is not None:
            states = min(states, _FLAGGED * self.states)
        return min(text_bytes * of_byte, searches * states * max(STATE_STEPS, of_byte))


@lru_cache(maxsize=1_000)
def measure(pattern: str) -> Pattern:
    """Return the measures of a pattern. Every count is rounded up."""
    # One frame for each open group: what stands before its last part; `last` is that part, which a repetition is about.
    before = [_NOTHING]
    last = _NOTHING
    head: Part | None = None
    alternatives = False
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "repeat":
            times, endless = _times(token)
            if endless and head is None:
                head = before[0]  # the group that this stands in comes after the head as a whole
            last = last.repeated(times)
        elif kind == "close" and len(before) > 1:
            last = before.pop().and_then(last)
        elif kind == "open":
            before[-1] = before[-1].and_then(last)
            before.append(Part(1))
            last = _NOTHING
        elif kind != "flags":
            before[-1] = before[-1].and_then(last)
            last = _atom(token)
            alternatives = alternatives or (kind == "either" and len(before) == 1)
    while before:
        last = before.pop().and_then(last)
    flags = "".join(_FLAGS.findall(pattern))
    if "i" in flags:  # a letter is then two
        last = Part(last.positions * 2, last.readers, last.characters)
    if alternatives or "m" in flags or not _START.match(pattern):
        return Pattern(last, _NOTHING, anchored=False, longest=None, states=_states_of(pattern))
    closed = head is None and pattern.endswith("$") and not pattern.endswith(r"\$")
    return Pattern(last, last if head is None else head, anchored=True, longest=last.characters if closed else None)


_NOTHING: Final = Part()
_FLAGS: Final = re.compile(r"\(\?([A-Za-z]+)")
_START: Final = re.compile(r"(?:\^|\\A)(?![*+?{])")


class _Step(NamedTuple):
    """One step of a plain row: the ASCII characters that it reads, as bits; whether it may be left out, or repeated."""

    characters: int
    optional: bool = False
    repeated: bool = False


def _states_of(pattern: str) -> int | None:
    """Return how many states the automaton of an unanchored search has; None where the pattern is no plain row, or they are many."""
    row = _row(pattern)
    if row is None:
        return None
    # A state is the places where the search may stand, the one that it prefers first: the library keeps them in this order.
    entries: list[tuple[int, ...]] = [(len(row),)]
    for at in reversed(range(len(row))):
        entries.append((at, *entries[-1]) if row[at].optional else (at,))
    entries.reverse()
    following = [(at, *entries[at + 1]) if step.repeated else entries[at + 1] for at, step in enumerate(row)]
    readers = {frozenset(at for at, step in enumerate(row) if step.characters >> character & 1) for character in range(128)}
    found = {entries[0]}
    waiting = [entries[0]]
    while waiting:
        places = waiting.pop()
        for reader in readers:
            reached = (after for at in places if at in reader for after in following[at])
            state = tuple(dict.fromkeys(chain(reached, entries[0])))
            if state not in found and len(row) not in state:  # with the first match the search is over
                found.add(state)
                waiting.append(state)
        if len(found) > _STATES_MADE:
            return None
    return len(found)


def _row(pattern: str) -> list[_Step] | None:
    """Return a pattern's steps, None where it has groups, choices, anchors but at its end, what repeats but is lazy, or
    characters that are not ASCII.
    """
    row: list[_Step] = []
    kind: str | None = None
    at_end = pattern.endswith("$") and not pattern.endswith(r"\$")
    for token in _TOKEN.finditer(pattern[:-1] if at_end else pattern):
        before, kind = kind, token.lastgroup
        if kind == "repeat":
            if not row or before == "repeat" or (len(token.group()) > 1 and token.group().endswith("?")):
                return None
            row.extend(_repeated(row.pop(), token))
        else:
            characters = _characters(token)
            if characters is None:
                return None
            row.append(_Step(characters))
        if len(row) > _STATES_MADE:
            return None
    return [*row, _NEVER] if at_end else row  # what matches only at the end is never over before


_NEVER: Final = _Step(0)


def _repeated(step: _Step, token: re.Match[str]) -> list[_Step]:
    """Return the steps that a repetition of one stands for."""
    sign = token.group()[0]
    if sign != "{":
        return [step._replace(optional=sign != "+", repeated=sign != "?")]
    low = int(token.group("low"))
    if not token.group("comma"):
        return [step] * low
    if not token.group("high"):
        return [step] * (low - 1) + [step._replace(optional=low == 0, repeated=True)]
    return [step] * low + [step._replace(optional=True)] * max(int(token.group("high")) - low, 0)


def _characters(token: re.Match[str]) -> int | None:
    """Return the ASCII characters that an atom reads, as bits; None where these are not all, or not known here."""
    text = token.group()
    if token.lastgroup == "plain" and text not in "^$" and text.isascii():
        return 1 << ord(text)
    if token.lastgroup == "escape":
        return _escaped(text)
    if token.lastgroup != "many" or text.startswith("[^") or not text.endswith("]") or not text.isascii():
        return None
    characters = 0
    for part in _RANGE.findall(text[1:-1]):
        if part.startswith("\\"):
            escaped = _escaped(part)
            if escaped is None:
                return None
            characters |= escaped
        elif len(part) == 3:
            characters |= sum(1 << code for code in range(ord(part[0]), ord(part[2]) + 1))
        elif len(part) == 1:
            characters |= 1 << ord(part)
        else:
            return None  # [:alpha:]
    return characters


def _escaped(text: str) -> int | None:
    if text in _CLASSES:
        return sum(1 << ord(character) for character in _CLASSES[text])
    return 1 << ord(text[1]) if len(text) == 2 and text[1].isascii() and not text[1].isalnum() else None


_CLASSES: Final = {r"\d": string.digits, r"\w": string.ascii_letters + string.digits + "_", r"\s": "\t\n\f\r "}


def _times(token: re.Match[str]) -> tuple[int, bool]:
    """Return how many copies a repetition stands for, and whether it has no end. RE2 writes `x{3,}` out as three and a loop."""
    if token.group().startswith("?"):
        return 1, False
    if not token.group("low"):
        return 1, True
    low, high = int(token.group("low")), int(token.group("high") or 0)
    endless = bool(token.group("comma")) and not token.group("high")
    return min(max(low, high) + endless, _REPETITIONS + 1), endless


def _atom(token: re.Match[str]) -> Part:
    text = token.group()
    if token.lastgroup == "either" or text in ("^", "$"):
        return Part(1)
    if token.lastgroup == "quoted":
        literal = text[2:].removesuffix(r"\E")
        return Part(len(literal.encode()), len(literal.encode()), len(literal))
    width = _width(token)
    return Part(width + _ranges(token), width, 1)


def _ranges(token: re.Match[str]) -> int:
    """Return how many ranges of characters an atom has beside its first: each is a position, though all of them read the same."""
    text = token.group()
    if token.lastgroup != "many":
        return _WORD_RANGES if text == r"\w" else 0
    inside = _RANGE.findall(text[1:].removesuffix("]"))
    return max(len(inside) - 1, 0) + _WORD_RANGES * sum(len(one) > 1 and one[1] in "w:" for one in inside)


_RANGE: Final = re.compile(r"\[:\^?\w+:\]|\\[\s\S]|[^\\](?:-[^\\])?")
_WORD_RANGES: Final = 3  # beside the first of [0-9A-Za-z_]; no other class that is written so short has more


def _width(token: re.Match[str]) -> int:
    """Return the positions that one atom takes."""
    text = token.group()
    match token.lastgroup:
        case "category":
            return _CATEGORY
        case "negated" | "any":
            return _SEVERAL
        case "many":
            inside = text[1:]
            width = _SEVERAL if inside.startswith("^") or re.search(r"\\[DWS]|\[:\^", inside) else 1
            return width + _CATEGORY * len(re.findall(r"\\[pP]", inside)) + 3 * sum(not one.isascii() for one in inside)
    return len(text.encode()) if token.lastgroup == "plain" else 4 if token.lastgroup == "code" else 1

"""The worst cost of searching a text with a regular expression.

The CEL library searches with RE2, which is never exponential, but not free. RE2 builds a deterministic automaton while it searches.
Where that grows too fast, it steps through every position of the pattern for every byte instead: a pattern of a thousand positions
then takes half a second for 64 KiB (measured: `a.{1000}c` 0.4 s, `(a?){1000}c` 0.9 s). The bound is therefore the positions of the
pattern, with counted repetitions expanded, times the bytes of the text. It is smaller if the automaton must stay small, or if a
pattern anchored at the start gives up after few characters. For a plain row of characters and classes, as most patterns are, the
automaton is built here to find its size.

Patterns are measured and never matched. Patterns that RE2 would not compile are measured too.
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
STATE_STEPS: Final = 2_000  # building one state of the automaton
FALLBACK_STEPS: Final = 300  # a byte, where nearly each builds a state, or the automaton is given up
FALLBACK_POSITION_STEPS: Final = 24  # a byte, for each position
BYTE_STEPS: Final = 4

CODE_POINT_BYTES: Final = 4
_REPETITIONS: Final = 1_000  # RE2 refuses more
_UNBOUNDED_STATES: Final = 30  # two to this power is more than any text reaches
_COUNT_DIGITS: Final = 5
_STATES_BUILT: Final = 200  # building stops here
_FLAGGED: Final = 4  # RE2 may distinguish by flags states that count once here

TOKEN: Final = re.compile(
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
    """A part of a pattern: its positions, those that read a character, and the most characters that it matches."""

    positions: int = 0
    readers: int = 0
    characters: int = 0

    def and_then(self, other: Part) -> Part:
        """Return this part followed by another one."""
        return Part(self.positions + other.positions, self.readers + other.readers, self.characters + other.characters)

    def repeated(self, times: int) -> Part:
        """Return this part repeated `times` times."""
        return Part((self.positions + 1) * times, self.readers * times, self.characters * times)


class Pattern(NamedTuple):
    """The measures of a pattern: the whole, and the head before the first unbounded repetition.

    `longest` is the greatest number of characters in a text that matches a pattern anchored at both ends; None if it is not known.
    """

    whole: Part
    head: Part
    anchored: bool  # at the start of the text
    longest: int | None
    states: int | None = None  # of the automaton; None: not built

    def steps(self, text_bytes: float, searches: float) -> float:
        """Return the worst cost of this number of searches through texts with `text_bytes` bytes in all."""
        steps = searches * (COMPILE_STEPS + COMPILE_POSITION_STEPS * self.whole.positions) + BYTE_STEPS * text_bytes
        if not self.anchored:
            return steps + self._scan(text_bytes, searches, self.whole.readers)
        # Behind the head, only the tail adds states, or the search is over.
        head_bytes = min(text_bytes, searches * self.head.characters * CODE_POINT_BYTES)
        tail = self.whole.readers - self.head.readers
        return steps + self._scan(head_bytes, searches, self.whole.readers) + self._scan(text_bytes if tail else 0, searches, tail)

    def _scan(self, text_bytes: float, searches: float, readers: int) -> float:
        of_byte = FALLBACK_STEPS + FALLBACK_POSITION_STEPS * self.whole.positions
        # A state is a set of positions of the search, with one of few flags.
        states = 1 << min(readers + 2, _UNBOUNDED_STATES)
        if self.states is not None:
            states = min(states, _FLAGGED * self.states)
        return min(text_bytes * of_byte, searches * states * max(STATE_STEPS, of_byte))


@lru_cache(maxsize=1_000)
def measure_pattern(pattern: str) -> Pattern:
    """Return the measures of a pattern. Every count is rounded up."""
    # One frame for each open group, with everything before its last part. `last` is that part, which a repetition repeats.
    before = [_NOTHING]
    last = _NOTHING
    head: Part | None = None
    alternatives = False
    for token in TOKEN.finditer(pattern):
        kind = token.lastgroup
        if kind == "repeat":
            times, endless = _times(token)
            if endless and head is None:
                head = before[0]  # the group around it belongs to the tail as a whole
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
    if "i" in flags:  # a letter counts twice
        last = Part(last.positions * 2, last.readers, last.characters)
    if alternatives or "m" in flags or not _START.match(pattern):
        return Pattern(last, _NOTHING, anchored=False, longest=None, states=_states_of(pattern))
    closed = head is None and pattern.endswith("$") and not pattern.endswith(r"\$")
    return Pattern(last, last if head is None else head, anchored=True, longest=last.characters if closed else None)


_NOTHING: Final = Part()
_FLAGS: Final = re.compile(r"\(\?([A-Za-z]+)")
_START: Final = re.compile(r"(?:\^|\\A)(?![*+?{])")


class _Step(NamedTuple):
    """One step of a plain row: the ASCII characters that it reads, as bits, and whether it is optional or repeated."""

    characters: int
    optional: bool = False
    repeated: bool = False


def _states_of(pattern: str) -> int | None:
    """Return the number of states of an unanchored search's automaton; None if the pattern is not a plain row, or has many states."""
    row = _row(pattern)
    if row is None:
        return None
    # A state is the positions of the search in order of preference, as in RE2.
    entries: list[tuple[int, ...]] = [(len(row),)]
    for at in reversed(range(len(row))):
        entries.append((at, *entries[-1]) if row[at].optional else (at,))
    entries.reverse()
    following = [(at, *entries[at + 1]) if step.repeated else entries[at + 1] for at, step in enumerate(row)]
    readers = {frozenset(at for at, step in enumerate(row) if step.characters >> character & 1) for character in range(128)}
    states = {entries[0]}
    queue = [entries[0]]
    while queue:
        places = queue.pop()
        for reader in readers:
            reached = (after for at in places if at in reader for after in following[at])
            state = tuple(dict.fromkeys(chain(reached, entries[0])))
            if state not in states and len(row) not in state:  # the first match ends the search
                states.add(state)
                queue.append(state)
        if len(states) > _STATES_BUILT:
            return None
    return len(states)


def _row(pattern: str) -> list[_Step] | None:
    """Return the steps of a plain row; None if the pattern has groups, choices, lazy or repeated repetitions, anchors other than
    at its end, or characters outside ASCII.
    """
    row: list[_Step] = []
    kind: str | None = None
    at_end = pattern.endswith("$") and not pattern.endswith(r"\$")
    for token in TOKEN.finditer(pattern[:-1] if at_end else pattern):
        before, kind = kind, token.lastgroup
        if kind == "repeat":
            if not row or before == "repeat" or (len(token.group()) > 1 and token.group().endswith("?")):
                return None
            row.extend(_repeat_step(row.pop(), token))
        else:
            characters = _characters(token)
            if characters is None:
                return None
            row.append(_Step(characters))
        if len(row) > _STATES_BUILT:
            return None
    return [*row, _NEVER] if at_end else row  # an anchor at the end: no match before it ends the search


_NEVER: Final = _Step(0)


def _repeat_step(step: _Step, token: re.Match[str]) -> list[_Step]:
    """Return the steps of a repeated step."""
    sign = token.group()[0]
    if sign != "{":
        return [step._replace(optional=sign != "+", repeated=sign != "?")]
    low, high = repetition_bounds(token)
    if high is None:
        return [step] * (low - 1) + [step._replace(optional=low == 0, repeated=True)]
    return [step] * low + [step._replace(optional=True)] * max(high - low, 0)


def _characters(token: re.Match[str]) -> int | None:
    """Return the ASCII characters that an atom reads, as bits; None if it may read others."""
    text = token.group()
    if token.lastgroup == "plain" and text not in "^$" and text.isascii():
        return 1 << ord(text)
    if token.lastgroup == "escape":
        return escape_characters(text)
    if token.lastgroup != "many" or text.startswith("[^") or not text.endswith("]") or not text.isascii():
        return None
    characters = 0
    for part in _RANGE.findall(text[1:-1]):
        if part.startswith("\\"):
            escaped = escape_characters(part)
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


def escape_characters(text: str) -> int | None:
    """Return the ASCII characters that an escape reads, as bits; None if it is another escape than of a class or of itself."""
    if text in _CLASSES:
        return sum(1 << ord(character) for character in _CLASSES[text])
    return 1 << ord(text[1]) if len(text) == 2 and text[1].isascii() and not text[1].isalnum() else None


_CLASSES: Final = {r"\d": string.digits, r"\w": string.ascii_letters + string.digits + "_", r"\s": "\t\n\f\r "}


def _times(token: re.Match[str]) -> tuple[int, bool]:
    """Return the number of copies of a repetition, and whether it is unbounded. RE2 expands `x{3,}` to three copies and a loop."""
    if token.group().startswith("?"):
        return 1, False
    if not token.group("low"):
        return 1, True
    low, high = repetition_bounds(token)
    return min(low + 1 if high is None else max(low, high), _REPETITIONS + 1), high is None


def repetition_bounds(token: re.Match[str]) -> tuple[int, int | None]:
    """Return the least and the greatest number of copies of a repetition, None where it is unbounded. Great counts are capped."""
    text = token.group()
    if not token.group("low"):
        return int(text.startswith("+")), 1 if text.startswith("?") else None
    low = _count(token.group("low"))
    if not token.group("comma"):
        return low, low
    return low, _count(token.group("high")) if token.group("high") else None


def _count(digits: str) -> int:
    # Neither library accepts a count of more digits.
    return int(digits) if len(digits) <= _COUNT_DIGITS else 10**_COUNT_DIGITS


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
    """Return the number of an atom's ranges after its first one; each is a position."""
    text = token.group()
    if token.lastgroup != "many":
        return _WORD_RANGES if text == r"\w" else 0
    inside = _RANGE.findall(text[1:].removesuffix("]"))
    return max(len(inside) - 1, 0) + _WORD_RANGES * sum(len(one) > 1 and one[1] in "w:" for one in inside)


_RANGE: Final = re.compile(r"\[:\^?\w+:\]|\\[\s\S]|[^\\](?:-[^\\])?")
_WORD_RANGES: Final = 3  # after the first of [0-9A-Za-z_]; no other short class has more


def _width(token: re.Match[str]) -> int:
    """Return the number of positions of an atom."""
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

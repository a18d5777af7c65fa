"""The worst cost of searching texts with a regular expression of a JSON Schema.

The library of schemas searches with Rust's regex, which builds a deterministic automaton while it reads. Its states are built here as
well, over characters, to find how many there are. If they are few, a search costs little for each byte. Otherwise it may build a state
for each byte, or step through all positions of the pattern; this takes seconds for 64 KiB (measured: `1[01]{4000}x` 3.7 s). Patterns
whose syntax is not known here, such as those with flags or `\\b`, count as such.

Expressions have bounds of their own, in `cel.pattern_cost`: the CEL library searches with RE2.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import chain, combinations
from typing import Final, NamedTuple

from gavel_rules.errors import GavelRulesError
from gavel_rules.language.cel.pattern_cost import CODE_POINT_BYTES, TOKEN, escape_characters, measure_pattern, repetition_bounds

# Steps, of about a nanosecond each; measured on one core of a small server, rounded up.
SEARCH_STEPS: Final = 60
BYTE_STEPS: Final = 2
STATE_STEPS: Final = 500  # building one state of the automaton
STATE_POSITION_STEPS: Final = 24  # for each position in the state

STATES_MAX: Final = 1_000  # more may not fit into the library's cache
_STATES_BUILT_MAX: Final = 4_000  # to find out how many positions the largest one has
_NODES_MAX: Final = 5_000
_DEPTH_MAX: Final = 50
_WORK_MAX: Final = 30_000  # nodes visited: to make them, and then to find the states
_COPIES_MAX: Final = 1_000_000  # nodes written into states, one for each state and character
_STATES_PRICED_MAX: Final = 20_000  # states inside of characters included

# Characters beyond ASCII are one character here, which an atom reads always, never, or perhaps.
_ASCII: Final = 128
_WIDE: Final = 1 << _ASCII
_EVERY: Final = (_WIDE << 1) - 1
_UNCERTAIN_MAX: Final = 4
_LITERALS_MAX: Final = 100
# States inside the bytes of such characters, for each state between characters: for a few ranges, and for a category of Unicode.
_WIDE_STATES: Final = 8
_CATEGORY_STATES: Final = 100
_LINE_END: Final = 1 << 10
_CONTROLS: Final = {r"\t": 1 << 9, r"\n": 1 << 10, r"\v": 1 << 11, r"\f": 1 << 12, r"\r": 1 << 13}


def search_steps(pattern: str, text_bytes: float, searches: float) -> float:
    """Return the worst cost of this number of searches through texts with `text_bytes` bytes in all."""
    measures = measure_pattern(pattern)
    automaton = _build_automaton(pattern, measures.anchored)
    if measures.anchored and measures.whole.readers == measures.head.readers:
        character_bytes = 1 if automaton is not None and automaton.is_ascii else CODE_POINT_BYTES
        text_bytes = min(text_bytes, searches * (measures.head.characters + 1) * character_bytes)
    positions = measures.whole.positions if automaton is None else automaton.positions
    state_steps = STATE_STEPS + STATE_POSITION_STEPS * positions
    steps = text_bytes * state_steps
    if automaton is not None and automaton.states <= STATES_MAX:
        priced = automaton.states * automaton.states_inside
        if priced <= _STATES_PRICED_MAX:
            steps = min(steps, priced * state_steps)
    return searches * SEARCH_STEPS + text_bytes * BYTE_STEPS + steps


class _Automaton(NamedTuple):
    """The number of states between characters, and of positions in the largest one.

    `states_inside` are those inside the bytes of characters, for each of these; 1: no atom reads a character beyond ASCII.
    """

    states: int
    positions: int
    states_inside: int

    @property
    def is_ascii(self) -> bool:
        """Whether no atom reads a character beyond ASCII."""
        return self.states_inside == 1


class _Atom(NamedTuple):
    """What one character may be: the characters that are certainly read, as bits, and the name of those that perhaps are."""

    characters: int
    uncertain: str = ""


class _Choice(NamedTuple):
    alternatives: list[list[_Tree]]


class _Repetition(NamedTuple):
    part: _Tree
    low: int
    high: int | None  # None: unbounded


_Tree = _Atom | _Choice | _Repetition
_NEVER: Final = _Atom(0)
_MATCH: Final = -1


class _UnknownPatternError(GavelRulesError):
    """The syntax of a pattern is not known here, or the pattern is too large."""


@lru_cache(maxsize=1_000)
def _build_automaton(pattern: str, anchored: bool) -> _Automaton | None:
    """Return the automaton of a search; None if it is not known. Those with too many states have _STATES_BUILT_MAX + 1."""
    try:
        network = _Network()
        entry = network.enter(_parse(pattern), _MATCH)
        return network.determine(entry, anchored)
    except _UnknownPatternError:
        return None


def _parse(pattern: str) -> _Choice:
    """Return the tree of a pattern that the library has accepted. Raises _UnknownPatternError."""
    open_groups: list[list[list[_Tree]]] = [[[]]]
    for token in TOKEN.finditer(pattern):
        sequence = open_groups[-1][-1]
        match token.lastgroup:
            case "open" if token.group() in ("(", "(?:") or "<" in token.group():
                open_groups.append([[]])
            case "close" if len(open_groups) > 1:
                group = _Choice(open_groups.pop())
                open_groups[-1][-1].append(group)
            case "either":
                open_groups[-1].append([])
            case "repeat" if sequence:
                sequence.append(_Repetition(sequence.pop(), *repetition_bounds(token)))
            case "any" | "plain" | "escape" | "negated" | "many" | "category" | "code":
                if token.group() in ("{", "}"):  # a repetition with blanks inside, which Rust reads as one
                    raise _UnknownPatternError
                if token.group() == "^":  # also matches behind the start here: more states, never fewer
                    sequence.append(_Choice([[]]))  # a repetition behind it repeats nothing
                else:
                    sequence.append(_NEVER if token.group() == "$" else _atom(token))
            case _:
                raise _UnknownPatternError
    if len(open_groups) > 1:
        raise _UnknownPatternError
    return _Choice(open_groups[0])


def _atom(token: re.Match[str]) -> _Atom:
    text = token.group()
    match token.lastgroup:
        case "any":
            return _Atom(_EVERY & ~_LINE_END)
        case "plain":
            return _Atom(1 << ord(text)) if text.isascii() else _Atom(0, text)
        case "category" | "code":
            return _Atom(0, text)
        case "negated":
            positive = escape_characters(text.lower())
            return _Atom(_EVERY if positive is None else _EVERY & ~positive)
        case "escape":
            characters = _CONTROLS.get(text, escape_characters(text))
            if characters is None:
                raise _UnknownPatternError
            return _Atom(characters, text if text == r"\s" else "")
    return _class_atom(text)


def _class_atom(text: str) -> _Atom:
    """Return the atom of a character class."""
    negated = text.startswith("[^")
    inside = text[2 if negated else 1 : -1]
    if not _CLASS.fullmatch(inside) or _ESCAPED_RANGE.search(inside):
        return _Atom(0, text)
    characters, uncertain = 0, ""
    for part in _CLASS_PART.findall(inside):
        one = escape_characters(part) if part.startswith("\\") else _range_characters(part)
        if one is None:
            return _Atom(0, text)
        characters |= one
        if part == r"\s" or not part.isascii():
            uncertain = text
    if negated:
        characters = (_EVERY if not uncertain else _EVERY & ~_WIDE) & ~characters
    return _Atom(characters, uncertain)


# Without classes inside and operations on classes.
_CLASS: Final = re.compile(r"(?:\\[^pP]|(?!&&|--|~~)[^\\\[])*")
# Ranges that begin or end with an escape: what they read is not known here.
_ESCAPED_RANGE: Final = re.compile(r".-\\|\\.-.", re.DOTALL)
_CLASS_PART: Final = re.compile(r"\\.|[^\\](?:-[^\\])?", re.DOTALL)


def _range_characters(part: str) -> int:
    return sum(1 << code for code in range(ord(part[0]), min(ord(part[-1]), _ASCII - 1) + 1))


class _Network:
    """The positions of a pattern: nodes, each with the atom that it reads, or none, and the nodes behind it."""

    def __init__(self) -> None:
        self._atoms: list[_Atom | None] = []  # None: nothing is read
        self._following: list[list[int]] = []
        self._reached: dict[int, tuple[int, ...]] = {_MATCH: (_MATCH,)}
        self._work = 0

    def enter(self, tree: _Tree, after: int, depth: int = 0) -> int:
        """Add the nodes of a tree in front of the node `after`; return their first one. Raises _UnknownPatternError."""
        self._work += 1
        if depth > _DEPTH_MAX or self._work > _WORK_MAX:
            raise _UnknownPatternError
        if isinstance(tree, _Atom):
            return self._add(tree, [after])
        if isinstance(tree, _Choice):
            entries = []
            for sequence in tree.alternatives:
                entry = after
                for part in reversed(sequence):
                    entry = self.enter(part, entry, depth + 1)
                entries.append(entry)
            return entries[0] if len(entries) == 1 else self._add(None, entries)
        entry = after
        if tree.high is None:
            entry = self._add(None, [after])
            self._following[entry].insert(0, self.enter(tree.part, entry, depth + 1))
        else:
            for _ in range(tree.high - tree.low):
                entry = self._add(None, [self.enter(tree.part, entry, depth + 1), after])
        for _ in range(tree.low):
            entry = self.enter(tree.part, entry, depth + 1)
        return entry

    def determine(self, entry: int, anchored: bool) -> _Automaton:
        """Return the automaton whose states are the positions of a search in order of preference."""
        atoms = {atom for atom in self._atoms if atom is not None}
        factor = max((_wide_states(atom) for atom in atoms), default=1)
        symbols = _symbols(atoms)
        readers: dict[_Atom | None, list[int]] = {atom: [index for index, symbol in enumerate(symbols) if atom in symbol] for atom in atoms}
        start = self._reach(entry)
        again = () if anchored else start
        states = {start}
        queue = [start] if _MATCH not in start else []
        self._work = copies = 0
        while queue and len(states) <= _STATES_BUILT_MAX and self._work <= _WORK_MAX and copies <= _COPIES_MAX:
            reached: list[list[tuple[int, ...]]] = [[] for _ in symbols]
            for node in queue.pop():
                atom = self._atoms[node]
                for index in readers[atom] if self._work <= _WORK_MAX else ():
                    after = self._reach(self._following[node][0])
                    reached[index].append(after)
                    self._work += 1 + len(after)
            for one in reached:
                copies += 1 + len(again) + sum(map(len, one))
                if copies > _COPIES_MAX:
                    break
                state = tuple(dict.fromkeys(chain(*one, again)))
                if state not in states and _MATCH not in state:  # the first match ends the search
                    states.add(state)
                    queue.append(state)
        if queue or self._work > _WORK_MAX or copies > _COPIES_MAX:
            return _Automaton(_STATES_BUILT_MAX + 1, len(self._atoms), factor)
        return _Automaton(len(states), max(map(len, states)), factor)

    def _add(self, atom: _Atom | None, following: list[int]) -> int:
        if len(self._atoms) >= _NODES_MAX:
            raise _UnknownPatternError
        self._atoms.append(atom)
        self._following.append(following)
        return len(self._atoms) - 1

    def _reach(self, node: int) -> tuple[int, ...]:
        """Return the nodes that read, or match, at a node, in order of preference."""
        known = self._reached.get(node)
        if known is not None:
            return known
        found: dict[int, None] = {}
        seen = set()
        stack = [node]
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            if one == _MATCH or self._atoms[one] is not None:
                found[one] = None
            else:
                stack.extend(reversed(self._following[one]))
        self._work += len(seen)
        answer = self._reached[node] = tuple(found)
        return answer


def _symbols(atoms: set[_Atom]) -> set[frozenset[_Atom]]:
    """Return the different characters, as the atoms that read them. Raises _UnknownPatternError if they are too many."""
    literals = {atom.uncertain for atom in atoms if len(atom.uncertain) == 1}  # each another character
    names = sorted({atom.uncertain for atom in atoms if atom.uncertain} - literals)
    if len(names) > _UNCERTAIN_MAX or len(literals) > _LITERALS_MAX:
        raise _UnknownPatternError
    read_together = [set(some) for count in range(len(names) + 1) for some in combinations(names, count)]
    of_ascii = [(character, some) for character in range(_ASCII) for some in read_together]
    beyond = [(_ASCII, {*some, literal}) for literal in (*literals, "") for some in read_together]
    return {
        frozenset(atom for atom in atoms if atom.characters >> character & 1 or (atom.uncertain and atom.uncertain in some))
        for character, some in (*of_ascii, *beyond)
    }


def _wide_states(atom: _Atom) -> int:
    if r"\p" in atom.uncertain.lower():
        return _CATEGORY_STATES
    return _WIDE_STATES if atom.uncertain or atom.characters & _WIDE else 1

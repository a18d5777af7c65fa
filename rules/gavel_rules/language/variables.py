"""Variables of a rule set: named expressions, written out wherever they are used.

A variable is text with a name. It is written out, in parentheses, before an expression is checked, so both engines see
plain expressions, a variable that is a comparison is lowered like one, and a `has()` inside a variable guards what is read
beside it. A variable has no type of its own: it is checked wherever it is used, with what is known there.

Variables may use each other, in any order, as long as none comes back to itself: a mapping has no order, and a document's
canonical form sorts it. What is wrong inside a variable is reported once, at the variable's own place, however often it is
used. Nothing is ever captured: a variable may name only what the language knows, and no macro may name its own variable like
one of these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gavel_rules.language.cel_library import Report, parse, report_complaint
from gavel_rules.language.cel_syntax import Comprehension, Identifier, Node, children
from gavel_rules.language.suggestions import suggestion
from gavel_rules.language.vocabulary import ROOTS, TYPE_NAMES

EXPANDED_LENGTH_MAX: Final = 16 * 1024

# Variable, offset in its text, code, message, suggestion.
VariableReport = Callable[[str, int, str, str, str], None]


class Expansion(NamedTuple):
    """An expression with its variables written out.

    `pieces` are (offset in the text, name of the variable or "", offset there), ascending. `open_names` are variables that
    could not be written out, for something is wrong with them: they stand in the text as their author wrote them.
    """

    text: str
    pieces: tuple[tuple[int, str, int], ...]
    open_names: frozenset[str] = frozenset()

    def origin(self, offset: int) -> tuple[str, int]:
        """Return which variable the character at an offset was written in ("" for the expression itself), and where there."""
        start, name, there = self.pieces[bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1]
        return name, there + offset - start


class _Use(NamedTuple):
    offset: int
    name: str


class _Variable(NamedTuple):
    text: str
    uses: tuple[_Use, ...]
    reads: frozenset[str]  # names of the language, its own only


class Variables:
    """The variables of one document."""

    def __init__(self, texts: Mapping[str, str], unreadable: Collection[str], report: VariableReport) -> None:
        """`unreadable` are variables whose text is no text, which has been reported. Everything wrong is reported at once."""
        self.names = frozenset((*texts, *unreadable))
        self._broken = set(unreadable)
        self._variables: dict[str, _Variable] = {}
        self._written: dict[str, Expansion] = {}
        self._reads: dict[str, frozenset[str]] = {}  # names of the language, also through other variables
        self.used: set[str] = set()
        self._reported = 0
        for name in texts:
            self._read(name, texts[name], report)
        self._refuse_cycles(report)
        for name in self._variables:
            if name not in self._broken:
                self._write(name, report)

    def expand(self, text: str, known: Collection[str], report: Report) -> Expansion | None:
        """Return an expression with its variables written out; None where that is impossible, with the reason reported.

        `known` are the names of the language that the expression may use. An expression that cannot be parsed is left as it is.
        """
        plain = Expansion(text, ((0, "", 0),))
        if not self.names:
            return plain
        try:
            tree = parse(text)
        except RuntimeError:
            return plain
        sound = True
        for offset, name in _captures(tree, self.names):
            sound = False
            report(offset, "shadowed-name", f"{name} already has a meaning", "name the macro's variable otherwise")
        uses = self._uses(tree)
        self.used.update(use.name for use in uses)
        written = [use for use in uses if use.name not in self._broken]
        for use in written:
            foreign = sorted(self._reads[use.name] - set(known))
            if foreign:
                sound = False
                message = f"{use.name} reads {', '.join(foreign)}, which is not known here"
                report(use.offset, "unknown-name", message, f"known here: {', '.join(sorted(known))}")
        length = len(text) + sum(len(self._written[use.name].text) - len(use.name) for use in written)
        if sound and length > EXPANDED_LENGTH_MAX:
            sound = False
            report(0, "too-complex", f"with its variables written out the expression has {length} characters", _SHORTEN)
        if not sound:
            return None
        return _written_out(text, written, self._written)._replace(open_names=frozenset(use.name for use in uses) & self._broken)

    def unused(self) -> list[str]:
        """Return every sound variable that no expression has used, not even through another one."""
        used = set(self.used)
        waiting = list(used)
        while waiting:
            found = set(self._names_used(waiting.pop())) - used
            used |= found
            waiting.extend(found)
        return [name for name in self._variables if name not in used and name not in self._broken]

    def _read(self, name: str, text: str, report: VariableReport) -> None:
        def note(offset: int, code: str, message: str, hint: str) -> None:
            self._broken.add(name)
            self._reported += 1
            report(name, offset, code, message, hint)

        try:
            tree = parse(text)
        except RuntimeError as error:
            report_complaint((), text, str(error), note, reported=False)
            return
        for offset, captured in _captures(tree, self.names):
            note(offset, "shadowed-name", f"{captured} already has a meaning", "name the macro's variable otherwise")
        reads = set()
        for free in _free(tree, frozenset()):
            if free.name in ROOTS:
                reads.add(free.name)
            elif free.name not in self.names and free.name not in TYPE_NAMES:
                known = sorted({*ROOTS, *self.names})
                note(free.offset, "unknown-name", f"nothing is named {free.name}", suggestion(free.name, known, self._reported))
        self._variables[name] = _Variable(text, self._uses(tree), frozenset(reads))

    def _uses(self, tree: Node) -> tuple[_Use, ...]:
        return tuple(sorted({use for use in _free(tree, frozenset()) if use.name in self.names}))

    def _refuse_cycles(self, report: VariableReport) -> None:
        """Report every variable that comes back to itself, at its first step there; call broken what rests on a broken one."""
        for name, variable in self._variables.items():
            way = self._way_back(name)
            if way:
                steps = " to ".join((name, *way))
                message = f"the variable {name} comes back to itself: {steps}" if len(way) > 1 else f"the variable {name} uses itself"
                offset = next(use.offset for use in variable.uses if use.name == way[0])
                report(name, offset, "variable-cycle", message, "write one of them without the others")
                self._broken.add(name)
        spreading = True
        while spreading:
            resting = {name for name, variable in self._variables.items() if any(use.name in self._broken for use in variable.uses)}
            spreading = not resting <= self._broken
            self._broken |= resting

    def _way_back(self, goal: str) -> list[str]:
        """Return the shortest way over uses from a variable to itself, without the start; empty where there is none."""
        before: dict[str, str] = {}
        waiting = [goal]
        for name in waiting:
            for used in self._names_used(name):
                if used not in before:
                    before[used] = name
                    waiting.append(used)
        if goal not in before:
            return []
        way = [goal]
        while before[way[-1]] != goal:
            way.append(before[way[-1]])
        return way[::-1]

    def _names_used(self, name: str) -> list[str]:
        variable = self._variables.get(name)
        return sorted({use.name for use in variable.uses}) if variable is not None else []

    def _write(self, name: str, report: VariableReport) -> None:
        """Write a variable out, what it uses first. One that would be too long is broken."""
        if name in self._written or name in self._broken:
            return
        variable = self._variables[name]
        for used in self._names_used(name):
            self._write(used, report)
        if any(use.name in self._broken for use in variable.uses):
            self._broken.add(name)
            return
        length = len(variable.text) + sum(len(self._written[use.name].text) - len(use.name) for use in variable.uses)
        if length > EXPANDED_LENGTH_MAX:
            self._broken.add(name)
            report(name, 0, "too-complex", f"with the variables it uses written out {name} has {length} characters", _SHORTEN)
            return
        body = _written_out(variable.text, variable.uses, self._written, name)
        # A comment at its end must not swallow the parenthesis.
        end = "\n)" if "//" in variable.text else ")"
        pieces = (
            (0, name, 0),
            *((start + 1, of, there) for start, of, there in body.pieces),
            (len(body.text) + 1, name, len(variable.text) - 1),
        )
        text = f"({body.text}{end}"
        try:
            parse(text)
        except RuntimeError:  # each by itself could be read
            self._broken.add(name)
            message = f"with the variables it uses written out {name} is nested too deep"
            report(name, 0, "too-complex", message, "let fewer variables use each other, one inside the other")
            return
        self._written[name] = Expansion(text, pieces)
        self._reads[name] = variable.reads.union(*(self._reads[used] for used in self._names_used(name)))


_SHORTEN: Final = f"the limit is {EXPANDED_LENGTH_MAX}: use variables less often in one expression"


def _written_out(text: str, uses: Iterable[_Use], written: Mapping[str, Expansion], owner: str = "") -> Expansion:
    """Return a text with the variables at these places replaced by what is written for them."""
    parts: list[str] = []
    pieces: list[tuple[int, str, int]] = [(0, owner, 0)]
    length = at = 0
    for use in uses:
        of = written[use.name]
        kept = text[at : use.offset]
        length += len(kept)
        pieces.extend((length + start, name, there) for start, name, there in of.pieces)
        parts.extend((kept, of.text))
        length += len(of.text)
        at = use.offset + len(use.name)
        pieces.append((length, owner, at))
    parts.append(text[at:])
    return Expansion("".join(parts), tuple(pieces))


def _free(node: Node, bound: frozenset[str]) -> Iterator[_Use]:
    """Yield every name that no macro binds, with its place."""
    match node:
        case Identifier(name, offset):
            if name not in bound:
                yield _Use(offset, name)
        case Comprehension():
            yield from _free(node.range, bound)
            yield from _free(node.start, bound)
            inner = bound | {node.variable, node.second_variable, node.accumulator}
            for part in (node.condition, node.step, node.result):
                yield from _free(part, inner)
        case _:
            for child in children(node):
                yield from _free(child, bound)


def _captures(node: Node, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield every macro whose own variable is named like one of the document's."""
    if isinstance(node, Comprehension):
        for name in (node.variable, node.second_variable):
            if name in names:
                yield node.offset, name
    for child in children(node):
        yield from _captures(child, names)

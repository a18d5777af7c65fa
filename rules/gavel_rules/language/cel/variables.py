"""Variables of a rule set: named expressions, expanded wherever they are used.

A variable is expanded in parentheses before an expression is checked. Both engines therefore see plain expressions, a variable that
is a comparison is lowered like one, and a `has()` inside a variable guards the reads next to it. A variable has no type of its own:
it is checked at each use, with the names in scope there.

Variables may use each other in any order, because a mapping has no order, as long as none depends on itself. A mistake inside a
variable is reported once, at the variable. Nothing is captured: a variable may name only the language's names and other variables,
and no macro may give its own variable the name of one.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Final, NamedTuple

from gavel_rules.language.cel.library import Report, parse, report_complaint
from gavel_rules.language.cel.syntax_tree import Call, Comprehension, Identifier, Node, Select, children, walk
from gavel_rules.language.cel.vocabulary import ADDED_ROOTS, HISTORY, ROOTS, TYPE_NAMES
from gavel_rules.text import DID_YOU_MEAN, suggestion

EXPANDED_LENGTH_MAX: Final = 16 * 1024
# Roots of names that stand for literals. Among the variables, such a name is the whole path: "constants.limit".
LITERAL_ROOTS: Final = frozenset(["constants", "zones", "calendars"])
_FIELD: Final = re.compile(r"\.(?:\s|//[^\n]*)*(?:\w+|`[^`]*`)")

# Variable, offset in its text, code, message, suggestion.
VariableReport = Callable[[str, int, str, str, str], None]


def is_literal(name: str) -> bool:
    """Report whether a name of the variables is a path that stands for a literal."""
    return name.partition(".")[0] in LITERAL_ROOTS and "." in name


def constant_literal(value: object) -> str:
    """Return a constant as a literal of CEL; "" if it cannot be one. All numbers are doubles: canonical JSON does not tell 1.0 from 1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(float(value) + 0.0)  # canonical JSON has no negative zero
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        items = [constant_literal(item) for item in value if not isinstance(item, list)]
        return f"[{', '.join(items)}]" if len(items) == len(value) and all(items) else ""
    return ""


class Expansion(NamedTuple):
    """An expression with its variables expanded.

    `pieces` are (offset in the text, name of the variable or "", offset there), ascending. `open_names` are variables with mistakes,
    which stay in the text unexpanded.
    """

    text: str
    pieces: tuple[tuple[int, str, int], ...]
    open_names: frozenset[str] = frozenset()

    def origin(self, offset: int) -> tuple[str, int]:
        """Return the variable that the character at an offset comes from ("" for the expression itself), and its offset there."""
        start, name, there = self.pieces[bisect_right(self.pieces, offset, key=lambda piece: piece[0]) - 1]
        return name, there + offset - start

    def beginnings(self) -> list[tuple[int, str]]:
        """Return where the expansion of each variable begins, at its parenthesis, with the variable's name."""
        return [
            (start, name)
            for (start, name, there), (after, same, _) in pairwise(self.pieces)
            if name and there == 0 and same == name and after == start + 1 and self.text[start] == "("
        ]


class _Use(NamedTuple):
    offset: int
    name: str
    dot: int = -1  # the place of the dot in the path of a literal


class _Variable(NamedTuple):
    text: str
    uses: tuple[_Use, ...]
    reads: frozenset[str]  # names of the language, not through other variables


class Variables:
    """The variables of one document."""

    def __init__(
        self,
        texts: Mapping[str, str],
        unreadable: Collection[str],
        report: VariableReport,
        version: int = 1,
        constants: Mapping[str, str] | None = None,
    ) -> None:
        """Read the variables and report their mistakes. `unreadable` are those whose value is not a text, which is reported already.

        `version` is the language's. `constants` are the document's names of LITERAL_ROOTS, as literals of CEL, which are expanded like
        variables.
        """
        self._version = version
        self._roots = ROOTS if version == 1 else ROOTS | {HISTORY}
        texts = {**(constants or {}), **texts}
        self.names = frozenset((*texts, *unreadable))
        self._broken = set(unreadable)
        self._variables: dict[str, _Variable] = {}
        self._expansions: dict[str, Expansion] = {}
        self._reads: dict[str, frozenset[str]] = {}  # names of the language, also through other variables
        self._available: dict[frozenset[str], frozenset[str]] = {}  # by the names of the language in scope
        self.used: set[str] = set()
        self._reported = 0
        for name in texts:
            self._read(name, texts[name], report)
        self._refuse_cycles(report)
        uses = {name: self._names_used(name) for name in self._variables if name not in self._broken}
        for name in TopologicalSorter(uses).static_order():
            self._expand_variable(name, report)

    def expand(self, text: str, known: Collection[str], report: Report) -> Expansion | None:
        """Return an expression with its variables expanded; None with the reason reported.

        `known` are the names of the language in scope. An expression that cannot be parsed is returned unchanged.
        """
        plain = Expansion(text, ((0, "", 0),))
        if not self.names and self._version == 1:
            return plain
        try:
            tree = parse(text, self._version)
        except RuntimeError:
            return plain
        sound = True
        for offset, name in _captures(tree, self._taken()):
            sound = False
            report(offset, "shadowed-name", f"{name} already has a meaning", "choose another name for the macro's variable")
        for use in self._unknown_constants(tree):
            sound = False
            report(use.offset, "unknown-name", *self._unknown_literal(use.name))
        for offset, name in self._needless_tests(tree):
            sound = False
            report(offset, "needless-has", f"{name} is always present", "remove has()")
        uses = self._uses(tree)
        self.used.update(use.name for use in uses)
        expandable = [use for use in uses if use.name not in self._broken]
        for use in expandable:
            foreign = sorted(self._reads[use.name] - set(known))
            if foreign:
                sound = False
                message = f"the variable {use.name} reads {', '.join(foreign)}, which is not available here"
                report(use.offset, "unknown-name", message, f"available here: {', '.join(sorted(known))}")
        length = len(text) + sum(len(self._expansions[use.name].text) - len(use.name) for use in expandable)
        if sound and length > EXPANDED_LENGTH_MAX:
            sound = False
            report(0, "too-complex", f"with its variables expanded, the expression has {length} characters", _SHORTEN)
        if not sound:
            return None
        return _expand(text, expandable, self._expansions)._replace(open_names=frozenset(use.name for use in uses) & self._broken)

    def available(self, known: Collection[str]) -> frozenset[str]:
        """Return the variables that an expression may use. `known` are the names of the language in scope."""
        scope = frozenset(known)
        if scope not in self._available:
            self._available[scope] = frozenset(name for name in self.names if self._reads.get(name, frozenset()) <= scope)
        return self._available[scope]

    def unused(self) -> list[str]:
        """Return every sound variable that no expression has used, directly or through another one."""
        used = set(self.used)
        queue = list(used)
        while queue:
            names = set(self._names_used(queue.pop())) - used
            used |= names
            queue.extend(names)
        return [name for name in self._variables if name not in used and name not in self._broken]

    def _read(self, name: str, text: str, report: VariableReport) -> None:
        def note(offset: int, code: str, message: str, hint: str) -> None:
            self._broken.add(name)
            self._reported += 1
            report(name, offset, code, message, hint)

        try:
            tree = parse(text, self._version)
        except RuntimeError as error:
            report_complaint((), text, str(error), note, reported=False)
            return
        for offset, captured in _captures(tree, self._taken()):
            note(offset, "shadowed-name", f"{captured} already has a meaning", "choose another name for the macro's variable")
        for offset, tested in self._needless_tests(tree):
            note(offset, "needless-has", f"{tested} is always present", "remove has()")
        reads = set()
        for free in self._free(tree):
            if is_literal(free.name):
                if free.name not in self.names:
                    note(free.offset, "unknown-name", *self._unknown_literal(free.name))
            elif free.name in self._roots:
                reads.add(free.name)
            elif free.name not in self.names and free.name not in TYPE_NAMES:
                known = sorted({*self._roots, *self.names})
                hint = self._suggest_read(tree, free) or suggestion(free.name, known, self._reported)
                note(free.offset, "unknown-name", f"there is no name {free.name}", hint)
        self._variables[name] = _Variable(text, self._uses(tree), frozenset(reads))

    def _uses(self, tree: Node) -> tuple[_Use, ...]:
        return tuple(sorted({use for use in self._free(tree) if use.name in self.names}))

    def _unknown_constants(self, tree: Node) -> list[_Use]:
        return sorted({use for use in self._free(tree) if is_literal(use.name) and use.name not in self.names})

    def _needless_tests(self, tree: Node) -> Iterator[tuple[int, str]]:
        """Yield (place, name) of every has() of a constant, zone or calendar."""
        for node in walk(tree) if self._version > 1 else ():
            match node:
                case Select(Identifier(root, offset), field_name, True) if f"{root}.{field_name}" in self.names:
                    yield offset, f"{root}.{field_name}"

    def _taken(self) -> frozenset[str]:
        """Return the names that no macro may give to its variable, besides those of the language's first version."""
        return self.names if self._version == 1 else self.names | ADDED_ROOTS

    def _unknown_literal(self, name: str) -> tuple[str, str]:
        """Return the message and the suggestion for a name of LITERAL_ROOTS that the document does not declare."""
        kind, _, own = name.partition(".")
        return f"there is no {kind.removesuffix('s')} {own}", suggestion(name, sorted(filter(is_literal, self.names)), self._reported)

    def _suggest_read(self, tree: Node, use: _Use) -> str:
        """Return the read of a counter that the author of `counters.NAME(key)` means; "" for another name."""
        if use.name != "counters" or HISTORY not in self._roots:
            return ""
        for node in walk(tree):
            match node:
                case Call(member, Identifier(offset=offset)) | Select(Identifier(offset=offset), member) if offset == use.offset:
                    return f"{DID_YOU_MEAN} {HISTORY}.{member}?"
        return f"{DID_YOU_MEAN} {HISTORY}?"

    def _free(self, tree: Node) -> Iterator[_Use]:
        """Yield every name that no macro binds, with its place. In the first version, `constants` is a name like any other."""
        return _free(tree, frozenset(), LITERAL_ROOTS if self._version > 1 else frozenset())

    def _refuse_cycles(self, report: VariableReport) -> None:
        """Report every variable that depends on itself, at its first step there; mark the variables that use a broken one."""
        for name, variable in self._variables.items():
            cycle = self._cycle(name)
            if cycle:
                steps = " to ".join((name, *cycle))
                message = f"the variable {name} depends on itself: {steps}" if len(cycle) > 1 else f"the variable {name} uses itself"
                offset = next(use.offset for use in variable.uses if use.name == cycle[0])
                report(name, offset, "variable-cycle", message, "remove the cycle")
                self._broken.add(name)
        spreading = True
        while spreading:
            resting = {name for name, variable in self._variables.items() if any(use.name in self._broken for use in variable.uses)}
            spreading = not resting <= self._broken
            self._broken |= resting

    def _cycle(self, goal: str) -> list[str]:
        """Return the shortest path over uses from a variable to itself, without the start; empty if there is none."""
        before: dict[str, str] = {}
        queue = [goal]
        for name in queue:
            for used in self._names_used(name):
                if used not in before:
                    before[used] = name
                    queue.append(used)
        if goal not in before:
            return []
        cycle = [goal]
        while before[cycle[-1]] != goal:
            cycle.append(before[cycle[-1]])
        return cycle[::-1]

    def _names_used(self, name: str) -> list[str]:
        variable = self._variables.get(name)
        return sorted({use.name for use in variable.uses}) if variable is not None else []

    def _expand_variable(self, name: str, report: VariableReport) -> None:
        """Expand a variable whose own variables are expanded. Mark it as broken if it gets too long or nests too deep."""
        variable = self._variables[name]
        if any(use.name in self._broken for use in variable.uses):
            self._broken.add(name)
            return
        length = len(variable.text) + sum(len(self._expansions[use.name].text) - len(use.name) for use in variable.uses)
        if length > EXPANDED_LENGTH_MAX:
            self._broken.add(name)
            report(name, 0, "too-complex", f"with its variables expanded, {name} has {length} characters", _SHORTEN)
            return
        body = _expand(variable.text, variable.uses, self._expansions, name)
        # A comment at its end must not swallow the parenthesis.
        end = "\n)" if "//" in variable.text else ")"
        pieces = (
            (0, name, 0),
            *((start + 1, of, there) for start, of, there in body.pieces),
            (len(body.text) + 1, name, len(variable.text) - 1),
        )
        text = f"({body.text}{end}"
        try:
            parse(text, self._version)
        except RuntimeError:  # each could be parsed by itself
            self._broken.add(name)
            message = f"with its variables expanded, {name} is nested too deep"
            report(name, 0, "too-complex", message, "nest fewer variables inside each other")
            return
        self._expansions[name] = Expansion(text, pieces)
        self._reads[name] = variable.reads.union(*(self._reads[used] for used in self._names_used(name)))


_SHORTEN: Final = f"the limit is {EXPANDED_LENGTH_MAX}: use variables less often in one expression"


def _expand(text: str, uses: Iterable[_Use], expansions: Mapping[str, Expansion], owner: str = "") -> Expansion:
    """Return a text with the variables at these places replaced by their expansions."""
    parts: list[str] = []
    pieces: list[tuple[int, str, int]] = [(0, owner, 0)]
    length = at = 0
    for use in uses:
        of = expansions[use.name]
        before = text[at : use.offset]
        length += len(before)
        pieces.extend((length + start, name, there) for start, name, there in of.pieces)
        parts.extend((before, of.text))
        length += len(of.text)
        at = use.offset + len(use.name)
        if is_literal(use.name):
            # Parentheses and comments may stand before the dot: `(constants).limit`. They stay.
            between = text[use.offset + use.name.index(".") : use.dot]
            pieces.append((length, owner, use.dot - len(between)))
            parts.append(between)
            length += len(between)
            field = _FIELD.match(text, use.dot)
            assert field is not None  # noqa: S101  # the parser has found the name there
            at = field.end()
        pieces.append((length, owner, at))
    parts.append(text[at:])
    return Expansion("".join(parts), tuple(pieces))


def _free(node: Node, bound: frozenset[str], literal_roots: frozenset[str]) -> Iterator[_Use]:
    """Yield every name that no macro binds, with its place: below `literal_roots` the whole path."""
    match node:
        case Identifier(name, offset):
            if name not in bound:
                yield _Use(offset, name)
        case Select(Identifier(name, offset), field_name, False, dot) if name in literal_roots and name not in bound:
            yield _Use(offset, f"{name}.{field_name}", dot)
        case Comprehension():
            yield from _free(node.range, bound, literal_roots)
            yield from _free(node.start, bound, literal_roots)
            inner = bound | {node.variable, node.second_variable, node.accumulator}
            for part in (node.condition, node.step, node.result):
                yield from _free(part, inner, literal_roots)
        case _:
            for child in children(node):
                yield from _free(child, bound, literal_roots)


def _captures(node: Node, names: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield (place, name) of every macro whose own variable has the name of one of the document's."""
    if isinstance(node, Comprehension):
        for name in (node.variable, node.second_variable, node.accumulator):  # the last one is the name of a binding
            if name in names:
                yield node.offset, name
    for child in children(node):
        yield from _captures(child, names)

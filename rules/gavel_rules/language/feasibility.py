"""Whether any proposal of an action on a subject could succeed, as far as the facts tell (seeds 002 §6.4).

The rules are evaluated three-valued: what the log says for certain is known, everything else (params, the proposal's estimates,
the producer, the trace, time) is unknown. If neither an approval nor a review is possible whatever the unknown may be, the
agent is told to stop. The claim is sound and not complete: it is never made where another proposal could pass, and there
are hopeless cases in which it is not made.

A fact is known if nothing but a new event can change what the rules see of it. So its subject must not come from params, and
everything that could speak in its place once it is too old must say the same.

The lowered formulas are exact, and so is this evaluation of them: a conjunction is impossible as soon as one of its atoms
is, and certain when all of them are. A guard is asked of CEL where all that it reads is known.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gavel_rules.language.case import Reader, bare_case
from gavel_rules.language.conditions import Environment
from gavel_rules.language.lowering import GUARD, PRESENCE, Atom, Conjunction, Formula, Guard, Lowered, Slot
from gavel_rules.language.reading import presences, reads
from gavel_rules.language.reference import Program, guard_source

_FACTS: Final = "facts."
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "": operator.eq,
    "$neq": operator.ne,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$gt": operator.gt,
    "$gte": operator.ge,
}


class Known:
    """What is certain about the declared facts, by name. A name in neither is unknown."""

    def __init__(self, values: dict[str, object], absent: set[str]) -> None:
        self.values: Final = values
        self.absent: Final = absent


class Prospect(NamedTuple):
    """What an action's rules may still say."""

    may_pass: bool  # an approval or a review is possible
    surely_rejects: bool  # whatever else, a rule rejects


POSSIBLE: Final = Prospect(may_pass=True, surely_rejects=False)
HOPELESS: Final = Prospect(may_pass=False, surely_rejects=True)
SILENT: Final = Prospect(may_pass=False, surely_rejects=False)


class _Unknown:
    """Marks a value that is not known."""


class _Absent:
    """Marks a value that is known not to be there."""


_UNKNOWN: Final = _Unknown()
_ABSENT: Final = _Absent()


class Feasibility:
    """The rules of one action, asked with some facts known and everything else unknown."""

    def __init__(self, environment: Environment, effects: Sequence[str], lowered: Sequence[Lowered]) -> None:
        """`effects` and `lowered` are those of the rules, by falling priority."""
        self._rules = [(effect, of_rule.formula) for effect, of_rule in zip(effects, lowered, strict=True)]
        self._guards = {guard.source: _GuardProgram(environment, guard) for of_rule in lowered for guard in of_rule.guards}
        atoms = [atom for of_rule in lowered for conjunction in of_rule.formula for atom in conjunction]
        self._literals: dict[str, Any] = {atom.right: json.loads(atom.right) for atom in atoms if isinstance(atom.right, str)}

    def prospect(self, known: Known) -> Prospect:
        """Return what the rules may say: the matching one of highest priority speaks."""
        may_pass = False
        for effect, formula in self._rules:
            holds = self._any(formula, known)
            if holds is False:
                continue
            if effect != "reject":
                may_pass = True
            if holds:
                return POSSIBLE if may_pass else HOPELESS
        return POSSIBLE if may_pass else SILENT

    def _any(self, formula: Formula, known: Known) -> bool | None:
        """Return whether a formula holds: None where that depends on what is not known."""
        possible = False
        for conjunction in formula:
            holds = self._all(conjunction, known)
            if holds:
                return True
            possible = possible or holds is None
        return None if possible else False

    def _all(self, conjunction: Conjunction, known: Known) -> bool | None:
        certain = True
        for atom in conjunction:
            holds = self._atom(atom, known)
            if holds is False:
                return False
            certain = certain and holds is not None
        return True if certain else None

    def _atom(self, atom: Atom, known: Known) -> bool | None:
        """Return whether an atom holds. What is absent makes it neither true nor false, so it does not hold."""
        left = self._value(atom.left, known)
        right = self._value(atom.right, known) if isinstance(atom.right, Slot) else self._literals[atom.right]
        if left is _ABSENT or right is _ABSENT:
            return False
        if left is _UNKNOWN or right is _UNKNOWN:
            return None
        return _COMPARE[atom.operator](left, right)

    def _value(self, slot: Slot, known: Known) -> object:
        if slot.kind == GUARD:
            return self._guards[slot.name].value(known)
        if not slot.name.startswith(_FACTS):
            return _UNKNOWN
        name = slot.name.removeprefix(_FACTS)
        if name in known.absent:
            return False if slot.kind == PRESENCE else _ABSENT
        if name in known.values:
            return True if slot.kind == PRESENCE else known.values[name]
        return _UNKNOWN


class _GuardProgram:
    """A guard that CEL computes where every fact that it reads or tests is known, and nothing else is read."""

    def __init__(self, environment: Environment, guard: Guard) -> None:
        tree = environment.tree(guard.source)
        read = list(reads(tree, environment.types))
        tested = [*presences(tree), *guard.needs]
        paths = {*(name for name, _ in read), *tested}
        self._needs = tuple(sorted(path.removeprefix(_FACTS) for path in paths if path.startswith(_FACTS)))
        self._answerable = len(self._needs) == len(paths)
        self._reader = Reader(read, tested)
        self._program = Program(environment, [guard_source(guard)])

    def value(self, known: Known) -> object:
        """Return what the guard comes to: a bool, absent where it errs or what it needs is not there, or unknown."""
        if not self._answerable or not _all_known(self._needs, known):
            return _UNKNOWN
        facts = {name: known.values[name] for name in self._needs if name in known.values}
        (answer,) = self._program.apart(self._reader.values(bare_case({}, facts)))
        return answer if isinstance(answer, bool) else _ABSENT


def _all_known(names: Iterable[str], known: Known) -> bool:
    return all(name in known.values or name in known.absent for name in names)

"""Whether any proposal of an action on a subject could succeed, given its facts (constitution §6.4).

The rules are evaluated with three truth values. Facts that are certain from the log are known; params, the proposal's estimates, the
producer, the trace and time are unknown. If neither an approval nor a review is possible whatever the unknown values are, the agent is told
to stop. The claim is sound and not complete: it is never made where another proposal could pass, but not every hopeless case is found.

A fact is known if only a new event can change what the rules see of it. Its subject must therefore not come from params, and all
evidence that could replace it once it is too old must have the same value.

Lowered formulas are exact, and evaluating them keeps that: a conjunction is impossible if one of its atoms is, and certain if all
of them are. CEL evaluates a guard if every fact that it reads is known.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gavel_rules.language.cel.checker import Environment
from gavel_rules.language.cel.tree_queries import find_presence_tests, find_variables
from gavel_rules.language.engines.case import CaseReader, bare_case
from gavel_rules.language.engines.cel import Program, guard_source
from gavel_rules.language.engines.lowering import GUARD, PRESENCE, Atom, Conjunction, Formula, Guard, LoweredCondition, Slot

_FACTS: Final = "facts."
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "": operator.eq,
    "$neq": operator.ne,
    "$lt": operator.lt,
    "$lte": operator.le,
    "$gt": operator.gt,
    "$gte": operator.ge,
}


class KnownFacts:
    """The declared facts that are certain, by name: their values, and those known to be absent. All others are unknown."""

    def __init__(self, values: dict[str, object], absent: set[str]) -> None:
        self.values: Final = values
        self.absent: Final = absent


class PossibleOutcomes(NamedTuple):
    """The outcomes that an action's rules still allow."""

    may_pass: bool  # an approval or a review is possible
    surely_rejects: bool  # a rule rejects, whatever the unknown values are


POSSIBLE: Final = PossibleOutcomes(may_pass=True, surely_rejects=False)
HOPELESS: Final = PossibleOutcomes(may_pass=False, surely_rejects=True)
SILENT: Final = PossibleOutcomes(may_pass=False, surely_rejects=False)


class _Unknown:
    """Marks a value that is not known."""


class _Absent:
    """Marks a value that is known to be absent."""


_UNKNOWN: Final = _Unknown()
_ABSENT: Final = _Absent()


class Feasibility:
    """Evaluates the rules of one action with some facts known and everything else unknown."""

    def __init__(self, environment: Environment, effects: Sequence[str], lowered: Sequence[LoweredCondition]) -> None:
        """`effects` and `lowered` belong to the rules, by falling priority."""
        self._rules = [(effect, condition.formula) for effect, condition in zip(effects, lowered, strict=True)]
        self._guards = {guard.source: _GuardProgram(environment, guard) for condition in lowered for guard in condition.guards}
        atoms = [atom for condition in lowered for conjunction in condition.formula for atom in conjunction]
        self._literals: dict[str, Any] = {atom.right: json.loads(atom.right) for atom in atoms if isinstance(atom.right, str)}

    def assess(self, known: KnownFacts) -> PossibleOutcomes:
        """Return which outcomes are possible. Of the rules that match, the one of highest priority decides."""
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

    def _any(self, formula: Formula, known: KnownFacts) -> bool | None:
        """Return whether a formula holds; None where that depends on unknown values."""
        possible = False
        for conjunction in formula:
            holds = self._all(conjunction, known)
            if holds:
                return True
            possible = possible or holds is None
        return None if possible else False

    def _all(self, conjunction: Conjunction, known: KnownFacts) -> bool | None:
        certain = True
        for atom in conjunction:
            holds = self._atom(atom, known)
            if holds is False:
                return False
            certain = certain and holds is not None
        return True if certain else None

    def _atom(self, atom: Atom, known: KnownFacts) -> bool | None:
        """Return whether an atom holds. An atom with an absent value is neither true nor false, so it does not hold."""
        left = self._value(atom.left, known)
        right = self._value(atom.right, known) if isinstance(atom.right, Slot) else self._literals[atom.right]
        if left is _ABSENT or right is _ABSENT:
            return False
        if left is _UNKNOWN or right is _UNKNOWN:
            return None
        return _COMPARE[atom.operator](left, right)

    def _value(self, slot: Slot, known: KnownFacts) -> object:
        if slot.kind == GUARD:
            return self._guards[slot.name].value(known)
        if not slot.name.startswith(_FACTS):
            return _UNKNOWN
        name, *steps = slot.name.split(".")[1:]
        if name in known.absent:
            return False if slot.kind == PRESENCE else _ABSENT
        if name not in known.values:
            return _UNKNOWN
        value = known.values[name]
        for step in steps:
            if not isinstance(value, dict) or step not in value:
                return False if slot.kind == PRESENCE else _ABSENT
            value = value[step]
        return True if slot.kind == PRESENCE else value


class _GuardProgram:
    """A guard that CEL can evaluate if it reads and tests facts alone, and all of them are known."""

    def __init__(self, environment: Environment, guard: Guard) -> None:
        tree = environment.tree(guard.source)
        variables = list(find_variables(tree, environment.types))
        presences = [*find_presence_tests(tree), *guard.required_paths]
        paths = {*(name for name, _ in variables), *presences}
        self._facts = tuple(sorted({path.split(".")[1] for path in paths if path.startswith(_FACTS)}))
        self._reads_facts_only = all(path.startswith(_FACTS) for path in paths)
        self._reader = CaseReader(variables, presences)
        self._program = Program(environment, [guard_source(guard)])

    def value(self, known: KnownFacts) -> object:
        """Return the guard's bool, or that it is unknown, or that it is absent because it fails or requires an absent value."""
        if not self._reads_facts_only or not _all_known(self._facts, known):
            return _UNKNOWN
        facts = {name: known.values[name] for name in self._facts if name in known.values}
        (answer,) = self._program.evaluate_each(self._reader.read(bare_case({}, facts)))
        return answer if isinstance(answer, bool) else _ABSENT


def _all_known(names: Iterable[str], known: KnownFacts) -> bool:
    return all(name in known.values or name in known.absent for name in names)

"""The edits of counters and derivations between two versions of a rule set, and which of them a history shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import CounterReading

from gavel_rules.authoring.meanings import CounterLabels, derivation_meaning, label_counters, rule_meanings
from gavel_rules.authoring.suites.case_bus import CaseRun
from gavel_rules.authoring.suites.histories.counter_versions import pair_counters
from gavel_rules.errors import CaseError
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

_Numbers = Mapping[tuple[str, str], float]  # by counter and key


class RuleSetEdits(NamedTuple):
    """What was edited between two versions."""

    labels: CounterLabels
    counters: frozenset[str]  # names of counters that both versions have, and that count otherwise in each
    derivations: frozenset[str]  # ids of derivations that one version lacks, or that mean something else in each


def find_edits(old: CompiledRuleSet, new: CompiledRuleSet) -> RuleSetEdits:
    """Return the edits of counters and derivations."""
    labels = label_counters(old, new)
    both = [name for name in old.counters if name in new.counters and labels.old[name] == labels.new[name]]
    pairs = pair_counters(both, old, new)
    # Digests differ by the layout of expressions, and by params that a counter does not read.
    counters = {
        name for name, pair in pairs.items() if pair.before.digest != pair.after.digest and (pair.counts_differ or pair.limits_differ)
    }
    before, after = (
        {rule.id: derivation_meaning(rule, names) for rule in version.derivations}
        for version, names in zip((old, new), labels, strict=True)
    )
    derivations = {rule_id for rule_id in {**before, **after} if before.get(rule_id) != after.get(rule_id)}
    return RuleSetEdits(labels, frozenset(counters), frozenset(derivations))


class ActionEdits:
    """The edits that concern an action which both versions have: of counters that it reads, and of its derivations."""

    def __init__(self, action_type: str, old: CompiledRuleSet, new: CompiledRuleSet, edits: RuleSetEdits) -> None:
        versions, actions = (old, new), (old.actions[action_type], new.actions[action_type])
        rules = [rule for version in versions for rule in version.derivations if rule.action_type == action_type]
        read = {counter.name for action in actions for counter in (*action.read_counters, *action.reserving_counters)}
        read |= {one.counter for rule in rules for one in rule.counter_reads}
        # All counters that are read, by name.
        self.read: Final = pair_counters(sorted(read), old, new)
        self.counters: Final = {name: pair for name, pair in self.read.items() if name in edits.counters}
        self._derivations = [rule for rule in rules if rule.id in edits.derivations]
        # The derivations from whose reports an edit may show.
        self.deriving: Final = [
            rule for rule in rules if rule.id in edits.derivations or any(one.counter in edits.counters for one in rule.counter_reads)
        ]
        # The counters whose numbers may tell the versions apart.
        needed = {*self.counters, *(one.counter for rule in self.deriving for one in rule.counter_reads)}
        self.telling: Final = {name: pair for name, pair in self.read.items() if name in needed}
        # "counters.NAME" and "derivations.ID".
        self.names: Final = {f"counters.{name}" for name in self.counters} | {f"derivations.{rule.id}" for rule in self._derivations}
        # Those that a history may show: none of limits.
        self.visible: Final = self.names - {f"counters.{name}" for name, pair in self.counters.items() if not pair.counts_differ}
        parts = [
            (rule_meanings(action, names), json.loads(version.canonical_json)["actions"][action_type])
            for action, version, names in zip(actions, versions, edits.labels, strict=True)
        ]
        # Whether other edits than those of `names` may explain different decisions.
        self.has_others: Final = parts[0] != parts[1]
        # Then the edit explains each history that the versions decide differently.
        self._is_only_edit = len(self.names) == len(self._derivations) == 1 and not self.has_others

    def shown_by(self, before: CaseRun, after: CaseRun, *, are_decisions_alike: bool, fact_keys: Iterable[str]) -> set[str]:
        """Return the edits that explained runs of a history show: counters that matter for its decisions or facts, and derivations.

        `fact_keys` are those of the facts that only one version derives.
        """
        if not are_decisions_alike and self._is_only_edit:
            return set(self.names)
        names: set[str] = set()
        if not are_decisions_alike and before.cases and after.cases:
            names = set(_deciding_counters(self.counters, before.cases[0], after.cases[0]))
        keys = set(fact_keys)
        deriving = [rule for rule in self.deriving if rule.key in keys]
        if before.consequences is not None and after.consequences is not None:
            readings = (run.report.execution.counters for run in (before.consequences, after.consequences))
            # An edited derivation says nothing of the counters that it reads.
            read = {one.counter for rule in deriving if rule not in self._derivations for one in rule.counter_reads}
            names |= read & _differing_counters(*readings)
        return {*(f"counters.{name}" for name in names), *(f"derivations.{rule.id}" for rule in deriving)} & self.names


def _deciding_counters(names: Iterable[str], before: tuple[CompiledAction, Case], after: tuple[CompiledAction, Case]) -> Iterator[str]:
    """Yield the counters that matter for different decisions: with the number of the other version alone, a version decides otherwise."""
    sides = [(*before, _numbers(*after)), (*after, _numbers(*before))]
    yield from (name for name in names if any(_matters(name, action, case, others) for action, case, others in sides))


def _differing_counters(before: Iterable[CounterReading], after: Iterable[CounterReading]) -> set[str]:
    """Return the counters that give other numbers, or numbers of other groups."""
    first, second = ({(one.counter, one.key, one.value) for one in readings} for readings in (before, after))
    return {counter for counter, _, _ in first ^ second}


def _numbers(action: CompiledAction, case: Case) -> _Numbers:
    keys = action.counter_keys(case) if action.counter_places else []
    numbers: dict[tuple[str, str], float] = {}
    for place in action.counter_places:
        key, number = keys[place.key], case.history.get(place.variable)
        if key is not None and number is not None:
            numbers[place.counter, key] = number
    return numbers


def _matters(counter: str, action: CompiledAction, case: Case, others: _Numbers) -> bool:
    keys = action.counter_keys(case) if action.counter_places else []
    history = dict(case.history)
    for place in action.counter_places:
        if place.counter == counter:
            history.pop(place.variable, None)
            number = others.get((counter, keys[place.key] or ""))
            if number is not None:
                history[place.variable] = number
    return history != case.history and _deciding_rule_id(action, case) != _deciding_rule_id(action, case.with_history(history))


def _deciding_rule_id(action: CompiledAction, case: Case) -> str:
    """Return the rule that decides a case, "" if none does."""
    try:
        matches = action.evaluate_reference(case).matches
    except CaseError:
        return ""
    return matches[0].id if matches else ""

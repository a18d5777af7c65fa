"""Edits between two versions of a rule set, and whether an edited counter matters for a decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gavel.v1.decision_pb2 import CounterReading

from gavel_rules.authoring.meanings import CounterLabels, derivation_meaning
from gavel_rules.errors import CaseError
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

_Numbers = Mapping[tuple[str, str], float]  # by counter and key


def edited_counters(old: CompiledRuleSet, new: CompiledRuleSet, labels: CounterLabels) -> set[str]:
    """Return the names of counters that both versions have, and that count otherwise in each."""
    both = [name for name in old.counters if name in new.counters and labels.old[name] == labels.new[name]]
    return {name for name in both if old.counters[name].digest != new.counters[name].digest}


def edited_derivations(old: CompiledRuleSet, new: CompiledRuleSet, labels: CounterLabels) -> Iterator[DerivationRule]:
    """Yield the derivations that only one version has, or that mean something else in each."""
    before, after = ({rule.id: rule for rule in version.derivations} for version in (old, new))
    for rule_id in {**before, **after}:
        pair = [version[rule_id] for version in (before, after) if rule_id in version]
        if len(pair) == 1 or derivation_meaning(pair[0], labels.old) != derivation_meaning(pair[1], labels.new):
            yield pair[-1]


def deciding_counters(names: Iterable[str], before: tuple[CompiledAction, Case], after: tuple[CompiledAction, Case]) -> set[str]:
    """Return the counters that matter for different decisions: with the number of the other version alone, a version decides otherwise."""
    sides = [(*before, _numbers(*after)), (*after, _numbers(*before))]
    return {name for name in names if any(_matters(name, action, case, others) for action, case, others in sides)}


def differing_counters(before: Iterable[CounterReading], after: Iterable[CounterReading]) -> set[str]:
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

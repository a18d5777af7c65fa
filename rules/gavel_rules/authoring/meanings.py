"""The meanings of rules, derivations and reads of counters, by which two versions of a rule set are compared.

A meaning does not depend on the layout of expressions. It has a label in place of each counter's name, and counters of two versions with
one label are one counter. Counters with equal digests have one label whatever their names: they may be renamed, merged or swapped. An
edited counter has its name as label: its definitions are compared elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from gavel_rules.language.cel.syntax_tree import Identifier, Node
from gavel_rules.language.counters.canonical_tree import canonical_tree
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.details import Details
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet


class CounterLabels(NamedTuple):
    """The labels of the counters of two versions, by name."""

    old: Mapping[str, str]
    new: Mapping[str, str]


RuleMeaning = tuple[str, int, str, str, Node]  # id, priority, effect, reason code, tree


def label_counters(old: CompiledRuleSet, new: CompiledRuleSet) -> CounterLabels:
    """Return the labels of the counters of two versions.

    A name with a different digest in each version is an edited counter, or it now names another counter. If a counter with one of these
    digests has another name in the other version, both readings are possible: the one that changes fewer rules and derivations is taken.
    """
    both = old.counters.keys() & new.counters.keys()
    by_name = _labels(old, new, {name for name in both if old.counters[name].digest != new.counters[name].digest})
    by_digest = _labels(old, new, ())
    if by_name == by_digest:
        return by_name
    return min(by_digest, by_name, key=lambda labels: _count_changes(old, new, labels))


def rule_meanings(action: CompiledAction | None, labels: Mapping[str, str]) -> list[RuleMeaning]:
    """Return the meaning of each rule of an action, in the order of the rules."""
    if action is None:
        return []
    return [
        (rule.id, rule.priority, rule.effect, rule.reason_code, canonical_tree(action.environment, condition.tree, labels))
        for rule, condition in zip(action.rules, action.conditions, strict=True)
    ]


def detail_meanings(details: Details, labels: Mapping[str, str]) -> dict[str, Node]:
    """Return the meaning of each detail of a rule, by name."""
    return {name: canonical_tree(details.environment, tree, labels) for name, tree in details.trees.items()}


class ReadMeaning(NamedTuple):
    """What a variable that stands for a read of a counter means. Reads of other kinds of numbers cannot have the same number."""

    tree: Node
    kind: str  # "int" or "double"


def read_meanings(action: CompiledAction | None, labels: Mapping[str, str]) -> dict[str, ReadMeaning]:
    """Return the meanings of an action's reads of counters, by variable."""
    if action is None:
        return {}
    meanings: dict[str, ReadMeaning] = {}
    for variable in [read.variable for read in action.counter_reads]:
        tree = canonical_tree(action.environment, Identifier(variable), labels)
        meanings[variable] = ReadMeaning(tree, action.environment.types[variable].kind)
    return meanings


def derivation_meaning(rule: DerivationRule, labels: Mapping[str, str]) -> tuple[object, ...]:
    """Return the meaning of a derivation."""
    trees = [
        canonical_tree(scoped.environment, scoped.expression.tree, labels) if scoped is not None else None
        for scoped in (rule.value_expression, rule.subject_expression)
    ]
    return (rule.action_type, rule.status, rule.key, *trees)


def _labels(old: CompiledRuleSet, new: CompiledRuleSet, edited: Collection[str]) -> CounterLabels:
    """Return labels under which the counters `edited` are the same in both versions."""
    digests = [{counter.digest for counter in version.counters.values()} for version in (old, new)]
    shared = digests[0] & digests[1]
    before, after = (
        {name: counter.digest if name not in edited and counter.digest in shared else name for name, counter in version.counters.items()}
        for version in (old, new)
    )
    return CounterLabels(before, after)


def _count_changes(old: CompiledRuleSet, new: CompiledRuleSet, labels: CounterLabels) -> int:
    """Return how many rules and derivations have one meaning in one version only."""
    before, after = (
        {
            *(meaning for action in version.actions.values() for meaning in rule_meanings(action, names)),
            *((rule.id, *derivation_meaning(rule, names)) for rule in version.derivations),
        }
        for version, names in zip((old, new), labels, strict=True)
    )
    return len(before ^ after)

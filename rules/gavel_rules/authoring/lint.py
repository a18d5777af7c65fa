"""Warnings about a valid rule set: rules that never decide, approvals that overrule refusals, and decisions that take too long.

Authors ask for them with `gavel rules lint` or ValidateRuleSet. They take time, so a deployment compiles without them. Each warning is
certain. A rule is reported as unreachable only if no case is left for it (`samples.constraints`), and two rules as overlapping only if both
engines match both of them on a sample case. A rule about which neither a case nor a proof was found is reported as not analysed.
The cases of a rule set's suites are seeds: samples of their own, and values for the search.

Most overlaps are normal, because priorities settle them: the stricter rule is the higher one, or a rule that asks a person stands
before one that refuses. Only a rule that approves what a lower one would refuse or send to review gets a warning.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from gavel_rules.authoring.decision_cost import COSTLY, find_costly_actions
from gavel_rules.authoring.samples.attributes import attribute_name, attribute_value, counter_domain, is_attribute
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.cases import WORK_MAX, CaseGenerator, case_generators
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.language.cel.counter_reads import CounterRead
from gavel_rules.language.cel.tree_queries import find_variables
from gavel_rules.language.cel.vocabulary import HISTORY
from gavel_rules.language.document.diagnostics import DocumentMessage, Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet, Rule
from gavel_rules.text import clip

LINT_RULES_MAX: Final = 200  # of one action
LINT_PAIRS_MAX: Final = 400  # of one action
VALUE_LENGTH_MAX: Final = 400

_VERB_OF_EFFECT: Final = {"reject": "refuse", "review": "send to review"}


def lint_rule_set(rule_set: CompiledRuleSet, work_max: int = WORK_MAX, seeds: Sequence[Seed] = ()) -> tuple[DocumentMessage, ...]:
    """Return the warnings about a rule set's rules, sorted by place. `CompiledRuleSet.warnings` holds the compiler's own.

    `work_max` bounds the work, in steps of a Budget; each action whose check needs more gets a warning. `seeds` are cases of suites.
    """
    return _Linter(rule_set, work_max, seeds).warnings()


class _Linter:
    """Collects the warnings about one rule set."""

    def __init__(self, rule_set: CompiledRuleSet, work_max: int, seeds: Sequence[Seed]) -> None:
        self._rule_set = rule_set
        self._work_max = work_max
        self._seeds = seeds
        self._messages = Messages()
        self._source = Source(rule_set.document, Messages())
        data = self._source.data
        rules = data["rules"] if isinstance(data, dict) else []
        self._index_of = {rule["id"]: index for index, rule in enumerate(rules)}

    def warnings(self) -> tuple[DocumentMessage, ...]:
        self._source.refuse_merge_keys(self._messages)
        for path, message, suggestion in find_costly_actions(self._rule_set):
            self._messages.add(self._source.locate(path), COSTLY, message, suggestion)
        for generator in case_generators(self._rule_set, self._work_max, self._seeds):
            action = generator.action
            name = action.action_type
            if generator.base is None and not generator.budget.exhausted:
                self._warn_incomplete(
                    name, "no params were found that match its schema", "give `examples` in the schema, or a suite with a case"
                )
                continue
            if len(action.rules) > LINT_RULES_MAX:
                self._warn_incomplete(
                    name, f"only the {LINT_RULES_MAX} rules with the highest priorities were analysed", "split the action"
                )
            unreachable = self._check_reachable(generator)
            self._check_overlaps(generator, unreachable)
            if generator.budget.exhausted:
                self._warn_incomplete(
                    name, "the analysis takes too much work", "simplify its conditions and its schema, or split the action or the rule set"
                )
        return self._messages.sorted()

    def _check_reachable(self, generator: CaseGenerator) -> set[int]:
        """Warn of rules that certainly never decide; return their indexes."""
        rules = generator.action.rules
        unreachable = set()
        for index, rule in enumerate(rules[:LINT_RULES_MAX]):
            witness = generator.find_decided_case(index)
            if witness.sample is None and not witness.impossible and not generator.budget.exhausted and not generator.find_seed(index):
                message = f"no case was found that rule {rule.id} decides; it may still decide some"
                self._warn(rule, "not-analysed", message, "test the rule in a suite")
            if not witness.impossible:
                continue
            unreachable.add(index)
            higher = [rules[other].id for other in witness.others if other < index]
            if higher:
                message = f"{rule.id} never decides: {_alternatives(higher)} decides every case that it matches"
                self._warn(rule, "unreachable-rule", message, "give it a higher priority, or remove it")
            else:
                message = f"{rule.id} never matches: no case fulfils its condition{_describe_counters(generator.action, index)}"
                self._warn(rule, "unreachable-rule", message, "correct or remove it")
        return unreachable

    def _check_overlaps(self, generator: CaseGenerator, unreachable: set[int]) -> None:
        """Warn of rules that approve a case that a lower matching rule would refuse or send to review."""
        action = generator.action
        pairs_left = LINT_PAIRS_MAX
        rules = action.rules[:LINT_RULES_MAX]
        for higher, rule in enumerate(rules):
            if rule.effect != "approve" or higher in unreachable:
                continue
            stricter = [index for index in range(higher + 1, len(rules)) if rules[index].effect != "approve" and index not in unreachable]
            overlaps = []
            for lower in stricter[:pairs_left]:
                description = _find_overlap(generator, higher, lower)
                if description:
                    overlaps.append((lower, description))
            pairs_left -= min(pairs_left, len(stricter))
            if overlaps:
                lower, description = overlaps[0]
                more = f"; the same holds for {_alternatives([rules[other].id for other, _ in overlaps[1:]])}" if len(overlaps) > 1 else ""
                self._warn(
                    rule,
                    "overlapping-rules",
                    f"{rule.id} approves a case that the lower rule {rules[lower].id} would {_VERB_OF_EFFECT[rules[lower].effect]}: "
                    f"{description}{more}",
                    "give the stricter rule the higher priority, or keep its cases out of this condition",
                )

    def _warn(self, rule: Rule, code: str, message: str, suggestion: str) -> None:
        self._messages.add(self._source.locate(("rules", self._index_of[rule.id], "id")), code, message, suggestion)

    def _warn_incomplete(self, action_type: str, reason: str, suggestion: str) -> None:
        place = self._source.locate_key(("actions", action_type))
        self._messages.add(place, "not-analysed", f"{action_type} was not analysed in full: {reason}", suggestion)


def _find_overlap(generator: CaseGenerator, higher: int, lower: int) -> str:
    """Return a case that one rule decides and a lower one matches too, as authors read it; "" if none was found."""
    action = generator.action
    witness = generator.find_decided_case(higher, [generator.formula(action, lower, True)])
    if witness.sample is not None and _both_match(action, (higher, lower), witness.sample):
        return _describe(witness.sample, action.counter_reads)
    seed = None if witness.impossible else generator.find_seed(higher, [lower])
    return f"the case {json.dumps(seed.name, ensure_ascii=False)} of its suite" if seed is not None else ""


def _both_match(action: CompiledAction, indexes: Sequence[int], sample: SampleCase) -> bool:
    """Return whether both engines match both rules."""
    verdict = action.evaluate(sample.case, cross_check=True)
    return verdict.disagreement is None and {action.rules[index] for index in indexes} <= set(verdict.matches)


def _describe(sample: SampleCase, reads: Iterable[CounterRead]) -> str:
    """Return a sample as authors read it: its params and facts, and the attributes that were assigned."""
    parts = [f"params {_json(sample.params)}"]
    if sample.facts:
        parts.append(f"facts {_json(sample.facts)}")
    assigned = (path for path in sorted(sample.assignment) if is_attribute(path))
    parts.extend(f"{attribute_name(path, reads)} {_json(attribute_value(path, sample.case))}" for path in assigned)
    return ", ".join(parts)


def _describe_counters(action: CompiledAction, index: int) -> str:
    """Return the bounds of the counters that a rule's condition reads, because a threshold may lie beyond them; "" if it reads none."""
    read = {name for name, _ in find_variables(action.conditions[index].tree, action.environment.types)}
    counters = {one.name: one for place, one in zip(action.counter_reads, action.read_counters, strict=True) if place.variable in read}
    bounds = ((name, counter_domain(counter)) for name, counter in sorted(counters.items()))
    return "".join(f"; {HISTORY}.{name} gives {domain.low:.0f} to {domain.high:.0f}" for name, domain in bounds)


def _json(value: object) -> str:
    return clip(json.dumps(value, ensure_ascii=False, sort_keys=True), VALUE_LENGTH_MAX)


def _alternatives(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"

"""The coverage of a rule set by its tests: rules, the branches of their conditions, derivations and compensations.

A rule is covered if it decided a case; a match below a deciding rule proves nothing. The branches of a condition are the operands
of its `&&`, `||` and `!`; each has two outcomes to cover, true and false. Only cases that reached the rules count. A derivation is
covered if it gave a fact, a compensation if it was approved; those of earlier proposals count too. A threshold of a counter is covered by
cases on both sides of the number at which the outcome changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gavel_rules import reason_codes
from gavel_rules.authoring.suites.case_bus import Consequences
from gavel_rules.authoring.suites.runner import CaseResult
from gavel_rules.events.kinds import GAVEL
from gavel_rules.language.explanation import branches, thresholds
from gavel_rules.language.rule_set import CompiledRuleSet

# By operator of a threshold: the places on both sides of the change of the outcome.
_PLACES: Final = {
    "<": ("just below", "at"),
    ">=": ("just below", "at"),
    ">": ("at", "just above"),
    "<=": ("at", "just above"),
    "==": ("at",),
    "!=": ("at",),
}


class BranchCoverage(NamedTuple):
    """How often a branch of a condition came out true and false."""

    expression: str
    true: int
    false: int


class ThresholdCoverage(NamedTuple):
    """How many cases lie just below, at and just above a threshold of a counter: within one, or within a hundredth of the threshold."""

    expression: str  # the left side
    operator: str
    value: float
    below: int
    at: int
    above: int

    def missing(self) -> list[str]:
        """Return where a case is missing, of the two places between which the outcome changes: "just below", "at", "just above"."""
        counts = {"just below": self.below, "at": self.at, "just above": self.above}
        return [place for place in _PLACES[self.operator] if not counts[place]]


class RuleCoverage(NamedTuple):
    """How often a rule matched and decided, and the coverage of its condition's branches and thresholds."""

    action: str
    rule_id: str
    matched: int
    decided: int
    branches: tuple[BranchCoverage, ...]
    thresholds: tuple[ThresholdCoverage, ...] = ()


class ConsequenceCoverage(NamedTuple):
    """How often a derivation or compensation gave a result, and how often its expressions gave none."""

    name: str  # "derivation ID" or "compensation of ACTION"
    made: int  # the key of JSON reports
    failed: int


class Ratio(NamedTuple):
    """How many of a total are covered."""

    covered: int
    total: int

    @property
    def percent(self) -> int:
        """The percentage, rounded down: 100 means all. It is 100 if the total is 0."""
        return 100 * self.covered // self.total if self.total else 100


class Coverage:
    """Accumulates the coverage of one rule set. Results without explanations add nothing."""

    def __init__(self, rule_set: CompiledRuleSet) -> None:
        self._policy_id = rule_set.policy_id
        self._branches = {
            (action.action_type, rule.id): {text: [0, 0] for text in branches(condition, action.environment)}
            for action in rule_set.actions.values()
            for rule, condition in zip(action.rules, action.conditions, strict=True)
        }
        self._thresholds = {
            (action.action_type, rule.id): {one: [0, 0, 0] for one in thresholds(condition, action.environment)}
            for action in rule_set.actions.values()
            for rule, condition in zip(action.rules, action.conditions, strict=True)
        }
        self._matched = dict.fromkeys(self._branches, 0)
        self._decided = dict.fromkeys(self._branches, 0)
        names = [*(_derivation_name(rule.id) for rule in rule_set.derivations), *_compensation_names(rule_set)]
        self._made = dict.fromkeys(names, 0)
        self._failed = dict.fromkeys(names, 0)

    def add(self, results: Iterable[CaseResult]) -> None:
        """Count what these cases covered."""
        for result in results:
            if result.rules_evaluated:
                self._add_rules(result)
            for earlier in result.earlier:
                if earlier.consequences is not None:
                    self._add_consequences(earlier.action, earlier.consequences)
            if result.consequences is not None:
                self._add_consequences(result.action, result.consequences)

    def rules(self) -> list[RuleCoverage]:
        """Return the coverage of every rule, by action and falling priority."""
        return [
            RuleCoverage(
                action=action,
                rule_id=rule_id,
                matched=self._matched[action, rule_id],
                decided=self._decided[action, rule_id],
                branches=tuple(BranchCoverage(text, true, false) for text, (true, false) in counts.items()),
                thresholds=tuple(ThresholdCoverage(*one, *counted) for one, counted in self._thresholds[action, rule_id].items()),
            )
            for (action, rule_id), counts in self._branches.items()
        ]

    def consequences(self) -> list[ConsequenceCoverage]:
        """Return the coverage of every derivation and compensation."""
        return [ConsequenceCoverage(name, results, self._failed[name]) for name, results in self._made.items()]

    def rule_ratio(self) -> Ratio:
        """Return how many of the rules decided a case."""
        return Ratio(sum(count > 0 for count in self._decided.values()), len(self._decided))

    def branch_ratio(self) -> Ratio:
        """Return how many outcomes of the conditions' branches came about."""
        counts = [count for of_rule in self._branches.values() for outcomes in of_rule.values() for count in outcomes]
        return Ratio(sum(count > 0 for count in counts), len(counts))

    def threshold_ratio(self) -> Ratio:
        """Return how many places on both sides of the counters' thresholds have a case."""
        coverages = [one for rule in self.rules() for one in rule.thresholds]
        total = sum(len(_PLACES[one.operator]) for one in coverages)
        return Ratio(total - sum(len(one.missing()) for one in coverages), total)

    def consequence_ratio(self) -> Ratio:
        """Return how many of the derivations and compensations gave a result."""
        return Ratio(sum(count > 0 for count in self._made.values()), len(self._made))

    def _add_rules(self, result: CaseResult) -> None:
        decides = result.decision.policy_id in (self._policy_id, GAVEL)
        for explanation in result.explanations:
            if explanation.policy_id != self._policy_id:
                continue  # a rule of a rule set beside this one
            identity = (result.action, explanation.rule_id)
            self._matched[identity] += explanation.matched
            self._decided[identity] += decides and result.decision.rule_id == explanation.rule_id
            counts = self._branches[identity]
            for term in explanation.terms:
                if term.expression in counts and term.value in ("true", "false"):
                    counts[term.expression][term.value == "false"] += 1
            values = {term.expression: term.value for term in explanation.terms}
            for threshold, counted in self._thresholds[identity].items():
                place = _place(values.get(threshold.expression, ""), threshold.value)
                if place is not None:
                    counted[place] += 1

    def _add_consequences(self, action: str, consequences: Consequences) -> None:
        for envelope in consequences.facts:
            _count(self._made, _derivation_name(envelope.fact.derivation_rule_id))
        for rule_id, _ in consequences.failed:
            _count(self._failed, _derivation_name(rule_id))
        if consequences.compensation is not None:
            _count(self._made, _compensation_name(action))
        if consequences.review == reason_codes.COMPENSATION_INVALID:
            _count(self._failed, _compensation_name(action))


def _count(counts: dict[str, int], name: str) -> None:
    """Count a derivation or compensation of the rule set; those of other rule sets have no count."""
    if name in counts:
        counts[name] += 1


def _place(text: str, threshold: float) -> int | None:
    """Return 0 for a number just below a threshold, 1 at it, 2 just above; None if it is farther away, or if the text is no number."""
    try:
        distance = float(text) - threshold
    except ValueError:
        return None
    if abs(distance) > max(1.0, abs(threshold) / 100):
        return None
    return 1 if distance == 0 else 0 if distance < 0 else 2


def _derivation_name(rule_id: str) -> str:
    return f"derivation {rule_id}"


def _compensation_name(action: str) -> str:
    return f"compensation of {action}"


def _compensation_names(rule_set: CompiledRuleSet) -> Iterator[str]:
    for action in rule_set.actions.values():
        if action.compensation is not None:
            yield _compensation_name(action.action_type)

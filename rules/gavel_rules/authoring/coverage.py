"""What the tests of a rule set have tried: which rules decided, which parts of their conditions came out both ways, what follows.

A rule is covered when it has decided a case: one that only matched beneath another rule could be anything. A condition's
branches are the operands of its logic, down to where there is no `&&`, `||` or `!` any more; each has two outcomes, true and
false. Only cases that reached the rules count: conditions that nobody asked have shown nothing. A derivation is covered when it
has given a fact, a compensation when it has been approved; whether the one or the other may fail is for a case to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gavel_rules import reasons
from gavel_rules.authoring.case_bus import CarriedOut
from gavel_rules.authoring.testing import CaseResult
from gavel_rules.language.explanation import branches
from gavel_rules.language.ruleset import CompiledRuleSet

# Said of decisions that the rules had a part in, though none matched.
_ASKED: Final = frozenset({reasons.NO_RULE_MATCHED, reasons.EVALUATION_ERROR, reasons.ENGINE_DISAGREEMENT})


class BranchCoverage(NamedTuple):
    """How often a part of a condition came out as each of its outcomes."""

    expression: str
    true: int
    false: int


class RuleCoverage(NamedTuple):
    """What was tried of one rule: how often it matched and decided, and its condition's branches."""

    action: str
    rule_id: str
    matched: int
    decided: int
    branches: tuple[BranchCoverage, ...]


class ConsequenceCoverage(NamedTuple):
    """How often what follows from a report came about, and how often its expressions gave nothing."""

    name: str  # "derivation ID" or "compensation of ACTION"
    made: int
    failed: int


class Share(NamedTuple):
    """So many of so many."""

    seen: int
    total: int

    @property
    def percent(self) -> int:
        """Rounded down: 100 means all of them. Of nothing, everything was seen."""
        return 100 * self.seen // self.total if self.total else 100


class Coverage:
    """Gathers what the cases of one rule set have tried. `add` every result that has explanations."""

    def __init__(self, rule_set: CompiledRuleSet) -> None:
        self._rules = {
            (action.action_type, rule.id): {text: [0, 0] for text in branches(condition, action.environment)}
            for action in rule_set.actions.values()
            for rule, condition in zip(action.rules, action.conditions, strict=True)
        }
        self._matched = dict.fromkeys(self._rules, 0)
        self._decided = dict.fromkeys(self._rules, 0)
        names = [*(_derivation(rule.id) for rule in rule_set.derivations), *_compensations(rule_set)]
        self._made = dict.fromkeys(names, 0)
        self._failed = dict.fromkeys(names, 0)

    def add(self, results: Iterable[CaseResult]) -> None:
        """Count what these cases tried."""
        for result in results:
            decision = result.decision
            codes = {decision.reason_code, *(warning.code for warning in decision.warnings)}
            if decision.rule_matches or codes & _ASKED:
                self._add(result)
            if result.carried_out is not None:
                self._add_consequences(result.action, result.carried_out)

    def _add(self, result: CaseResult) -> None:
        for explanation in result.explanations:
            identity = (result.action, explanation.rule_id)
            self._matched[identity] += explanation.matched
            self._decided[identity] += result.decision.rule_id == explanation.rule_id
            counts = self._rules[identity]
            for term in explanation.terms:
                if term.expression in counts and term.value in ("true", "false"):
                    counts[term.expression][term.value == "false"] += 1

    def _add_consequences(self, action: str, carried_out: CarriedOut) -> None:
        for fact in carried_out.facts:
            self._made[_derivation(fact.derivation_rule_id)] += 1
        for rule_id in carried_out.failed:
            self._failed[_derivation(rule_id)] += 1
        if carried_out.compensation is not None:
            self._made[_compensation(action)] += 1
        if carried_out.review == reasons.COMPENSATION_INVALID:
            self._failed[_compensation(action)] += 1

    def consequences(self) -> list[ConsequenceCoverage]:
        """Return what was tried of every derivation and compensation."""
        return [ConsequenceCoverage(name, made, self._failed[name]) for name, made in self._made.items()]

    def of_consequences(self) -> Share:
        """Return how many derivations and compensations came about in a case."""
        return Share(sum(count > 0 for count in self._made.values()), len(self._made))

    def rules(self) -> list[RuleCoverage]:
        """Return what was tried of every rule, by action and falling priority."""
        return [
            RuleCoverage(
                action=action,
                rule_id=rule_id,
                matched=self._matched[action, rule_id],
                decided=self._decided[action, rule_id],
                branches=tuple(BranchCoverage(text, true, false) for text, (true, false) in counts.items()),
            )
            for (action, rule_id), counts in self._rules.items()
        ]

    def of_rules(self) -> Share:
        """Return how many of the rules decided a case."""
        return Share(sum(count > 0 for count in self._decided.values()), len(self._decided))

    def of_branches(self) -> Share:
        """Return how many outcomes of the conditions' branches were seen."""
        counts = [count for of_rule in self._rules.values() for outcomes in of_rule.values() for count in outcomes]
        return Share(sum(count > 0 for count in counts), len(counts))


def _derivation(rule_id: str) -> str:
    return f"derivation {rule_id}"


def _compensation(action: str) -> str:
    return f"compensation of {action}"


def _compensations(rule_set: CompiledRuleSet) -> Iterator[str]:
    for action in rule_set.actions.values():
        if action.compensation is not None:
            yield _compensation(action.action_type)

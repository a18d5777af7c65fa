"""What the tests of a rule set have tried: which rules decided, and which parts of their conditions came out both ways.

A rule is covered when it has decided a case: one that only matched beneath another rule could be anything. A condition's
branches are the operands of its logic, down to where there is no `&&`, `||` or `!` any more; each has two outcomes, true and
false. Only cases that reached the rules count: conditions that nobody asked have shown nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from gavel_rules import reasons
from gavel_rules.explanation import branches
from gavel_rules.ruleset import CompiledRuleSet
from gavel_rules.testing import CaseResult

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

    def add(self, results: Iterable[CaseResult]) -> None:
        """Count what these cases tried."""
        for result in results:
            decision = result.decision
            codes = {decision.reason_code, *(warning.code for warning in decision.warnings)}
            if decision.rule_matches or codes & _ASKED:
                self._add(result)

    def _add(self, result: CaseResult) -> None:
        for explanation in result.explanations:
            identity = (result.action, explanation.rule_id)
            self._matched[identity] += explanation.matched
            self._decided[identity] += result.decision.rule_id == explanation.rule_id
            counts = self._rules[identity]
            for term in explanation.terms:
                if term.expression in counts and term.value in ("true", "false"):
                    counts[term.expression][term.value == "false"] += 1

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

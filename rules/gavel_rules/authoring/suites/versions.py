"""The cases of a suite under two versions of a rule set: a diff by the situations that the author has written down.

Generated cases give counters some number. The cases of a suite have histories: earlier proposals, their executions, and the time since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gavel.v1.decision_pb2 import Outcome

from gavel_rules.authoring.derived_facts import DerivedFact, derived_facts
from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.suites.case_bus import CaseBusError
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language.document.diagnostics import DocumentError
from gavel_rules.language.rule_set import CompiledRuleSet


class SuiteCaseChange(NamedTuple):
    """A case that two versions decide differently, or from whose execution they derive different facts.

    A decision is None if the case does not fit the version, e.g. for an unknown fact.
    """

    case: str
    before: CaseDecision | None
    after: CaseDecision | None
    derived_before: tuple[DerivedFact, ...] = ()  # sorted
    derived_after: tuple[DerivedFact, ...] = ()


def compare_versions(suite: Suite, old: Sequence[CompiledRuleSet], new: Sequence[CompiledRuleSet]) -> Iterator[SuiteCaseChange]:
    """Yield the cases of a suite that two versions treat differently, in order.

    `old` and `new` are the rule sets that the suite tests, in its order, with one version and with the other.
    """
    for case in suite.cases:
        of_case = suite._replace(cases=(case,))
        before, derived_before = _decide(of_case, old)
        after, derived_after = _decide(of_case, new)
        if before != after or repr(derived_before) != repr(derived_after):  # 1 and true are equal in Python
            yield SuiteCaseChange(case.name, before, after, derived_before, derived_after)


def _decide(suite: Suite, rule_sets: Sequence[CompiledRuleSet]) -> tuple[CaseDecision | None, tuple[DerivedFact, ...]]:
    """Return the decision on the only case of a suite, and the facts that the rule sets derive from its execution."""
    rule_set, *others = rule_sets
    try:
        (result,) = run_cases(suite, rule_set, others, explain=False)
    except (DocumentError, CaseBusError):
        return None, ()
    if result.error:
        return None, ()
    decision = result.decision
    facts = derived_facts(result.consequences.facts) if result.consequences is not None else ()
    outcome = Outcome.Name(decision.outcome).removeprefix("OUTCOME_")
    return CaseDecision(outcome, decision.reason_code, decision.rule_id), facts

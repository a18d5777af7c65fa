"""The cases of a suite under two versions of a rule set: a diff by the situations that the author has written down.

Generated cases give counters some number. The cases of a suite have histories: earlier proposals, their executions, and the time since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gavel.v1.decision_pb2 import Outcome

from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.suites.case_bus import CaseBusError
from gavel_rules.authoring.suites.runner import run_cases
from gavel_rules.authoring.suites.suite import Suite
from gavel_rules.language.document.diagnostics import DocumentError
from gavel_rules.language.rule_set import CompiledRuleSet


class SuiteCaseChange(NamedTuple):
    """A case that two versions decide differently. A decision is None if the case does not fit the version, e.g. for an unknown fact."""

    case: str
    before: CaseDecision | None
    after: CaseDecision | None


def compare_versions(
    suite: Suite, old: CompiledRuleSet, new: CompiledRuleSet, others: Sequence[CompiledRuleSet] = ()
) -> Iterator[SuiteCaseChange]:
    """Yield the cases of a suite that two versions decide differently, in order. `others` are in force too."""
    for case in suite.cases:
        of_case = suite._replace(cases=(case,))
        before, after = _decide(of_case, old, others), _decide(of_case, new, others)
        if before != after:
            yield SuiteCaseChange(case.name, before, after)


def _decide(suite: Suite, rule_set: CompiledRuleSet, others: Sequence[CompiledRuleSet]) -> CaseDecision | None:
    try:
        (result,) = run_cases(suite, rule_set, others, explain=False)
    except (DocumentError, CaseBusError):
        return None
    decision = result.decision
    return CaseDecision(Outcome.Name(decision.outcome).removeprefix("OUTCOME_"), decision.reason_code, decision.rule_id)

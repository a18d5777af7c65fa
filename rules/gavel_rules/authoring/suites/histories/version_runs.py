"""Runs of histories by the core under two versions of a rule set."""

from __future__ import annotations

from typing import Final, NamedTuple

from gavel.v1.decision_pb2 import Outcome

from gavel_rules.authoring.derived_facts import DerivedFact, derived_facts
from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.suites.case_bus import CaseBus, CaseBusError, CaseRun
from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.authoring.suites.runner import resolve_cases
from gavel_rules.authoring.suites.suite import Suite, SuiteCase
from gavel_rules.language.document.diagnostics import DocumentError, Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledRuleSet

_APPROVED: Final = "APPROVED"


class Runs(NamedTuple):
    """The runs of one history under both versions."""

    before: CaseRun
    after: CaseRun


class VersionBuses:
    """A bus with each version in force. Raises CaseBusError if the core refuses one of them."""

    def __init__(self, old: CompiledRuleSet, new: CompiledRuleSet) -> None:
        self._versions = [(version, CaseBus(version)) for version in (old, new)]

    def run(self, part: CasePart, *, explain: bool = False) -> Runs | None:
        """Return the runs of a history; None if it does not fit a version."""
        suite = Suite("", (), "", (SuiteCase("", part, (), {}),), Source("{}", Messages()))
        runs: list[CaseRun] = []
        try:
            for version, bus in self._versions:
                ((case, facts, action),) = resolve_cases(suite, version)
                runs.append(bus.run(case, facts, action, explain=explain))
        except (CaseBusError, DocumentError):
            return None
        return Runs(*runs)

    def approve(self, part: CasePart) -> bool:
        """Return whether both versions approve the last proposal of a history."""
        runs = self.run(part)
        return runs is not None and all(decision_of(run).outcome == _APPROVED for run in runs)


def decision_of(run: CaseRun) -> CaseDecision:
    """Return the decision on the last proposal."""
    decision = run.decision
    return CaseDecision(Outcome.Name(decision.outcome).removeprefix("OUTCOME_"), decision.reason_code, decision.rule_id)


def earlier_decisions(run: CaseRun) -> list[tuple[int, str] | None]:
    """Return outcome and reason code of each earlier proposal; None for one that competes with the last one."""
    return [(one.decision.outcome, one.decision.reason_code) if one.decision is not None else None for one in run.earlier]


def facts_of(run: CaseRun) -> tuple[DerivedFact, ...]:
    """Return the facts that the rule set derives from the last proposal's execution."""
    return derived_facts(run.consequences.facts) if run.consequences is not None else ()

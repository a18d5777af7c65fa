"""The comparison of two versions of counters on single proposals: whether both count a proposal and its report in one group, and alike.

A proposal that they count differently is the best earlier one of a history. Such proposals are rare if `where` was edited: an amount
between two thresholds, or a status of the report that only one version names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from gavel.v1.execution_pb2 import Execution, ExecutionStatus

from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.suites.histories.counter_versions import CounterVersions
from gavel_rules.authoring.suites.histories.sample_reports import EarlierReport
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.counters.counter import (
    APPROVALS,
    EXECUTIONS,
    OUTCOMES,
    REJECTIONS,
    VALUE_SOURCES,
    CompiledCounter,
    CountedEvent,
    CounterError,
)
from gavel_rules.language.report_expressions import STATUS_PREFIX, execution_values

Count = tuple[object, ...]  # group, amounts and scale; () if the proposal does not count


class CountComparison:
    """The comparison of the edited counters of an action. `reports` are those that its earlier proposals may have."""

    def __init__(self, action_type: str, counters: Iterable[CounterVersions], reports: Sequence[EarlierReport]) -> None:
        self._action_type = action_type
        self._counters = [pair for pair in counters if pair.counts_differ and all(counter.source not in VALUE_SOURCES for counter in pair)]
        self._reports = reports
        self.compares_sources: Final = any(pair.before.source != pair.after.source for pair in self._counters)
        # Of both versions; they name the values on which the versions may differ.
        self.expressions: Final[list[ScopedExpression]] = [
            scoped for pair in self._counters for counter in pair for scoped in counter.expressions if scoped is not None
        ]

    def differences(self, sample: SampleCase, *, is_approved: bool) -> list[tuple[Count, Count]]:
        """Return the different counts of a sample under both versions, with any of the reports; [] if there are none."""
        found = (pair for report in self._reports for pair in self._differences(sample, report, is_approved=is_approved))
        return list(dict.fromkeys(found))

    def rank_reports(self, samples: Iterable[SampleCase]) -> list[EarlierReport]:
        """Return the reports by rank: first those with which one of the samples counts differently."""
        tried = list(samples)
        return sorted(self._reports, key=lambda report: not any(self._differences(one, report, is_approved=True) for one in tried))

    def _differences(self, sample: SampleCase, report: EarlierReport, *, is_approved: bool) -> list[tuple[Count, Count]]:
        pairs: list[tuple[Count, Count]] = []
        for versions in self._counters:
            before, after = (self._count(counter, sample, report, is_approved=is_approved) for counter in versions)
            if before != after:
                pairs.append((before, after))
        return pairs

    def _count(self, counter: CompiledCounter, sample: SampleCase, report: EarlierReport, *, is_approved: bool) -> Count:
        needs_approval = {APPROVALS: True, EXECUTIONS: True, REJECTIONS: False}.get(counter.source, is_approved)
        if needs_approval != is_approved or (counter.source == EXECUTIONS and not report.status):
            return ()
        variables: dict[str, object] = {}
        if counter.source == EXECUTIONS:
            variables = _report_values(report)
        elif counter.source in OUTCOMES:
            variables = {"outcome": OUTCOMES[counter.source], "reason_code": ""}
        try:
            amount = counter.amount_of(self._event(sample, variables))
            if amount is None:
                return ()
            settled = amount.value
            if counter.is_reserved and report.status:
                settled = counter.settled_amount(self._event(sample, _report_values(report)), amount.value)
        except CounterError as error:
            return ("error", str(error.group))
        return (amount.group, amount.value, settled, counter.scale)

    def _event(self, sample: SampleCase, variables: dict[str, Any]) -> CountedEvent:
        case = sample.case
        producer = (case.producer_type, case.producer_id, case.producer_version)
        return CountedEvent(self._action_type, sample.params, case.subject, *producer, {**variables, "trace.id": "case"})


def _report_values(report: EarlierReport) -> dict[str, object]:
    values = execution_values(Execution(status=ExecutionStatus.Value(f"{STATUS_PREFIX}{report.status}")))
    return {**values, "execution.result": dict(report.result)}

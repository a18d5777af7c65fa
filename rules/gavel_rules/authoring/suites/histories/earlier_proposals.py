"""Earlier proposals of generated histories: their number, age, subject, producer and reports.

Their number follows from the numbers with which counters are compared, their ages from the windows, and their reports from the documents.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.hints import collect_hints, collect_hints_of
from gavel_rules.authoring.suites.histories.history_cases import Earlier
from gavel_rules.authoring.suites.histories.sample_reports import sample_results
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.vocabulary import COUNTER_READS
from gavel_rules.language.counters.counter import CompiledCounter
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.engines.case import Case
from gavel_rules.language.rule_set import CompiledAction

COUNT_MAX: Final = 12  # earlier proposals of a history
SAMPLES_MAX: Final = 6  # that are tried as earlier proposals of another one
DAY_MS: Final = 86_400_000

_STATUSES: Final = ("SUCCESS", "FAILED", "ABORTED", "TIMEOUT", "PARTIAL")
_STATUSES_OF_ANY: Final = ("SUCCESS", "ABORTED", "FAILED")
# Reports that settle a reservation.
_EFFECTIVE: Final = ("SUCCESS", "PARTIAL")
_OTHER_SUBJECT: Final = "-earlier"
_OTHER_PRODUCER: Final = "another-agent"


class EarlierReport(NamedTuple):
    """The report of an earlier execution; with an empty `status` there is none."""

    status: str
    result: Mapping[str, Any]


class EarlierProposals:
    """The options for the earlier proposals of an action: each list begins with its plainest one.

    `counters` are those whose numbers may tell the versions apart, without those of facts. If there are none, no proposal comes earlier.
    `deriving` are the derivations from whose reports an edit may show. `reported_amount` is the number in reports.
    """

    def __init__(
        self,
        actions: tuple[CompiledAction, CompiledAction],
        counters: Sequence[CompiledCounter],
        deriving: Sequence[DerivationRule],
        documents: Sequence[str],
        reported_amount: float,
    ) -> None:
        self._actions = actions
        self.counters = counters
        self._deriving = deriving
        self._documents = documents
        self._reported_amount = reported_amount

    def options(self, samples: int) -> tuple[Sequence[Any], ...]:
        """Return the options of each part of a past with so many samples: arguments of `past`."""
        if not self.counters:
            return [0], [0], [EarlierReport("", {})], [(False, False)], range(1)
        others = [(False, False), (True, False), (False, True)]
        return self._counts(), self._ages(), self._reports(), others, range(min(samples, SAMPLES_MAX))

    def past(
        self, case: Case, first: SampleCase, count: int, age_ms: int, report: EarlierReport, others: tuple[bool, bool]
    ) -> Earlier | None:
        """Return earlier proposals like the sample `first`; None if there are none. `others`: of another subject, of another producer."""
        if not count:
            return None
        is_other_subject, is_other_producer = others
        is_other_subject |= not (report.status or age_ms)  # an open decision holds the key of its subject
        subject = case.subject + _OTHER_SUBJECT if is_other_subject else case.subject
        producer = _OTHER_PRODUCER if is_other_producer else case.producer_id
        return Earlier(count, age_ms, first.params, subject, producer, report.status, report.result)

    def _counts(self) -> list[int]:
        """Return numbers of earlier proposals: one, those around the numbers that counters are compared with, and two."""
        expressions = [ScopedExpression(action.environment, one) for action in self._actions for one in action.conditions]
        expressions.extend(rule.value_expression for rule in self._deriving)
        thresholds = {
            int(constant)
            for environment, expression in expressions
            for path, hints in collect_hints(expression.tree, environment.types).items()
            if path.startswith(f"{COUNTER_READS}.")
            for constant in hints.constants
            if isinstance(constant, int | float) and abs(constant) <= COUNT_MAX
        }
        around = sorted(one + step for one in thresholds for step in (0, 1))
        none = [0] if self._deriving else []  # the plainest history that derives something
        return [*dict.fromkeys([1, *none, *(one for one in around if 0 < one <= COUNT_MAX), 2])]

    def _reports(self) -> list[EarlierReport]:
        """Return reports of the earlier proposals: first those that the documents name, and those with a result that a counter reads."""
        named = [one for one in _STATUSES if any(one in document for document in self._documents)]
        statuses = dict.fromkeys([*named[:1], *_STATUSES_OF_ANY[:1], *named, *_STATUSES_OF_ANY])
        hints = [collect_hints_of(counter.expressions) for counter in self.counters]
        # With the fields that all counters read, then with those of each: a version may read another field.
        of_each = [[*sample_results(one, self._reported_amount)] for one in (ChainMap(*hints), *hints)]
        plain = self._with_results(one[0] for one in of_each)
        odd = self._with_results(result for one in of_each for result in one[1:])
        without = [EarlierReport(status, {}) for status in statuses]
        return [*(plain or without)[:1], EarlierReport("", {}), *plain[1:], *without[0 if plain else 1 :], *odd]

    def _with_results(self, results: Iterable[Mapping[str, Any]]) -> list[EarlierReport]:
        """Return reports of an effect with each of these results once."""
        different = {json.dumps(result): result for result in results if result}
        return [EarlierReport(status, result) for result in different.values() for status in _EFFECTIVE if self._is_tried(status)]

    def _is_tried(self, status: str) -> bool:
        return status in _STATUSES_OF_ANY or any(status in document for document in self._documents)

    def _ages(self) -> list[int]:
        """Return ages of earlier proposals: between the windows of the counters, just now, and around each window."""
        windows = sorted({counter.window_ms or DAY_MS for counter in self.counters})
        between = [(windows[0] + windows[-1]) // 2] if len(windows) > 1 else [windows[0] // 2]
        edges = [edge for window in windows for edge in (window - 1, window)]
        return [age for age in dict.fromkeys([*between, 0, *edges, 2 * windows[-1]]) if age >= 0]

"""Earlier proposals of generated histories: their number, age, subject, producer and reports.

Their number follows from the numbers with which counters are compared, their ages from the windows, and their reports from the documents.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.hints import collect_hints_of
from gavel_rules.authoring.suites.histories.counter_versions import CounterVersions, ages_ms
from gavel_rules.authoring.suites.histories.history_cases import Earlier
from gavel_rules.authoring.suites.histories.sample_reports import PLAIN_NUMBER, EarlierReport, sample_results
from gavel_rules.authoring.suites.histories.thresholds import Thresholds, counts_around
from gavel_rules.language.counters.counter import COUNT, DISTINCT, PROPOSALS, REJECTIONS
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.engines.case import Case

COUNT_MAX: Final = 100  # earlier proposals of a history
AMOUNTS_MAX: Final = 12  # earlier proposals that add up to a sum

_STATUSES: Final = ("SUCCESS", "FAILED", "ABORTED", "TIMEOUT", "PARTIAL")
# Statuses that are tried even if no document names them.
_STATUSES_ALWAYS_TRIED: Final = ("SUCCESS", "ABORTED", "FAILED")
# Reports that settle a reservation.
_EFFECTIVE: Final = ("SUCCESS", "PARTIAL")
# Reports after which the key of a decision may still be in use: nobody knows their effect.
_UNKNOWN_EFFECT: Final = ("FAILED", "TIMEOUT")
_OTHER_SUBJECT: Final = "-earlier"
_OTHER_PRODUCER: Final = "another-agent"


class EarlierProposals:
    """The options for the earlier proposals of an action: each list begins with its plainest one.

    `counters` are those whose numbers may tell the versions apart, without those of facts. If there are none, no proposal comes earlier.
    """

    def __init__(
        self,
        counters: Mapping[str, CounterVersions],
        deriving: Sequence[DerivationRule],
        documents: Sequence[str],
        thresholds: Thresholds,
        *,
        conflict_key_is_subject: bool,
    ) -> None:
        self.counters = counters
        self._conflict_key_is_subject = conflict_key_is_subject
        self.amounts = thresholds.amounts(counters)  # by param; proposals with them bring counters to their thresholds
        self._documents = documents
        self._counts_refused = any(counter.source in (PROPOSALS, REJECTIONS) for versions in counters.values() for counter in versions)
        # The smallest amount: most proposals are approved with another one.
        self._reported_amount = min((number for numbers in self.amounts.values() for number in numbers if number > 0), default=PLAIN_NUMBER)
        self._thresholds = {name: thresholds.of_counter(name) for name in counters}
        none = [0] if deriving else []  # the plainest history that derives something
        self.counts = [*dict.fromkeys([1, *none, *self._find_counts(), 2])] if counters else [0]
        self.reports = self._find_reports() if counters else [EarlierReport("", {})]
        # Of another subject, of another producer.
        self.others = [(False, False), (True, False), (False, True)] if counters else [(False, False)]
        self.numbered = [*self._find_numbered(), ""]

    def ages_ms(self, now_ms: int) -> list[int]:
        """Return the options for the age of the proposals before one at `now_ms`."""
        return ages_ms(self.counters.values(), now_ms) if self.counters else [0]

    def past(
        self, case: Case, first: SampleCase, count: int, age_ms: int, report: EarlierReport, others: tuple[bool, bool], numbered: str
    ) -> Earlier | None:
        """Return earlier proposals like the sample `first`; None if there are none. `others`: of another subject, of another producer."""
        if not count:
            return None
        is_other_subject, is_other_producer = others
        # An open decision holds the key of its subject, and so does a failed execution: the next proposal is rejected.
        holds_key = self._conflict_key_is_subject and report.status in _UNKNOWN_EFFECT
        is_other_subject |= holds_key or not (report.status or age_ms)
        if (holds_key or not report.status) and not self._counts_refused:
            numbered = numbered or "subject"
        subject = case.subject + _OTHER_SUBJECT if is_other_subject else case.subject
        producer = _OTHER_PRODUCER if is_other_producer else case.producer_id
        return Earlier(count, age_ms, first.params, subject, producer, report.status, report.result, numbered if count > 1 else "")

    def reason(self, name: str) -> str:
        """Return why no history with earlier proposals shows the edit of a counter, "" if none is known."""
        if name in self.counters and self._is_count(name) and any(threshold > COUNT_MAX for threshold in self._thresholds[name]):
            return f"at most {COUNT_MAX} earlier proposals are tried, and a number that it is compared with needs more"
        return ""

    def _find_counts(self) -> list[int]:
        """Return numbers of proposals with which a count reaches its thresholds. Sums reach theirs by few proposals of other amounts."""
        ratios = {
            threshold
            for name, found in self._thresholds.items()
            for threshold in found
            if abs(threshold) <= (COUNT_MAX if self._is_count(name) else AMOUNTS_MAX)
        }
        return counts_around(sorted(ratios), COUNT_MAX)

    def _find_numbered(self) -> list[str]:
        """Return the names of the texts whose different values counters count. A numbered text differs in each proposal."""
        counters = [counter for versions in self.counters.values() for counter in versions if counter.aggregate == DISTINCT]
        read = {name for counter in counters if counter.expressions.amount is not None for name in counter.expressions.amount.names()}
        texts = {"subject" if name.startswith("subject") else name for name in read}
        return sorted(name for name in texts if name in ("subject", "producer.id") or (name.startswith("params.") and name.count(".") == 1))

    def _is_count(self, name: str) -> bool:
        return any(counter.aggregate == COUNT for counter in self.counters[name])

    def _find_reports(self) -> list[EarlierReport]:
        """Return reports of the earlier proposals: first those that the documents name, and those with a result that a counter reads."""
        named = [one for one in _STATUSES if any(one in document for document in self._documents)]
        statuses = dict.fromkeys([*named[:1], *_STATUSES_ALWAYS_TRIED[:1], *named, *_STATUSES_ALWAYS_TRIED])
        hints = [collect_hints_of(counter.expressions) for versions in self.counters.values() for counter in versions]
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
        return status in _STATUSES_ALWAYS_TRIED or any(status in document for document in self._documents)

"""Histories of an action with earlier proposals, or with none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.suites.histories.earlier_facts import EarlierFacts
from gavel_rules.authoring.suites.histories.earlier_proposals import EarlierProposals
from gavel_rules.authoring.suites.histories.enumeration import indexes_by_sum
from gavel_rules.authoring.suites.histories.history_cases import History, HistoryCases, Past

EARLIER_SAMPLES_MAX: Final = 6  # that are tried as earlier proposals of another one


def proposal_histories(
    earlier: EarlierProposals,
    cases: HistoryCases,
    samples: Sequence[tuple[SampleCase, tuple[EarlierFacts, ...]]],
    reports: Sequence[Mapping[str, Any] | None],
) -> Iterator[History]:
    """Yield histories, the plainest first: those whose parts are early among the options of each part.

    The earlier proposals are like the last one, or like one of the next samples. Each sample comes with earlier facts.
    """
    steps = range(min(len(samples), EARLIER_SAMPLES_MAX) if earlier.counters else 1)
    ages = [earlier.ages_ms(sample.case.now_ms) for sample, _ in samples]
    longest = range(max(map(len, ages), default=0))
    options: tuple[Sequence[Any], ...] = (
        range(len(samples)),
        reports,
        earlier.counts,
        longest,
        earlier.reports,
        earlier.others,
        steps,
        earlier.numbered,
    )
    for indexes in indexes_by_sum([len(one) for one in options]):
        number, report, count, age, earlier_report, others, step, numbered = (
            one[index] for one, index in zip(options, indexes, strict=True)
        )
        if age < len(ages[number]):
            (sample, facts), (first, _) = samples[number], samples[(number + step) % len(samples)]
            past = Past(earlier.past(sample.case, first, count, ages[number][age], earlier_report, others, numbered), facts)
            history = cases.history(sample, past, report)
            if history is not None:
                yield history

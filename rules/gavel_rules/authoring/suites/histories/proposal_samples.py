"""Sample proposals of an action, on which generated histories end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from gavel_rules.authoring.samples.attributes import BASE_TIME_MS, NOW, build_case, complete_attributes, is_attribute
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.cases import CaseGenerator, generate_cases
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.histories.counter_versions import CounterVersions
from gavel_rules.language.document.canonical_form import to_canonical_json
from gavel_rules.language.rule_set import CompiledAction

WORK_MAX: Final = 200_000  # steps of a Budget, to generate the proposals of one action
SAMPLES_MAX: Final = 40
AMOUNT_MAX: Final = 1e9
AMOUNTS_MAX: Final = 8  # of one param


class ProposalSamples:
    """Proposals that tell the rules of both versions of an action apart, and a value of each fact of many subjects, by name.

    `amounts` has the amounts that are tried too, by param. Proposals come also at times at which one of the `counters` counts otherwise.
    """

    def __init__(
        self,
        actions: tuple[CompiledAction, CompiledAction],
        seeds: Sequence[Seed],
        amounts: Mapping[str, Sequence[float]],
        counters: Iterable[CounterVersions],
    ) -> None:
        old, new = actions
        self.values_of_many: dict[str, list[object]] = {}
        samples: dict[str, SampleCase] = {}
        times = sorted({versions.telling_time_ms(BASE_TIME_MS) for versions in counters} - {BASE_TIME_MS})
        for version, other in ((new, old), (old, new)):
            generator = CaseGenerator(version, [other], Budget(WORK_MAX), seeds)
            for fact in version.facts:
                lists = (value for value in generator.values(f"facts.{fact.name}") if isinstance(value, list) and value)
                self.values_of_many.setdefault(fact.name, next(lists, []))
            cases = generate_cases(version, SAMPLES_MAX // 4, generator)
            approved = [one for one in cases if _is_approved(version, one)]
            with_amounts = [one for sample in approved[:1] for one in _vary_amounts(version, sample, amounts)]
            at_times = [one for sample in (*with_amounts, *approved[:1]) for now_ms in times for one in _at(sample, now_ms)]
            varied = chain(at_times, with_amounts, cases, *map(generator.vary_params, approved[:1]))
            for sample in islice(varied, SAMPLES_MAX // 2):
                case = sample.case
                key = (
                    to_canonical_json(sample.params),
                    sample.facts,
                    case.now_ms,
                    case.subject,
                    case.producer_type,
                    case.producer_id,
                    case.producer_groups,
                )
                samples.setdefault(repr(key), sample)
        self._samples = list(samples.values())

    def rank(self, are_approved: Iterator[bool]) -> list[SampleCase]:
        """Return the samples by rank: first those that both versions approve, the largest amounts before others.

        `are_approved` says it of each sample, in the order of `__iter__`.
        """
        ranks = [(not approved, -_magnitude(sample.params)) for approved, sample in zip(are_approved, self._samples, strict=True)]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        approved = [index for index in order if not ranks[index][0]]
        half = ranks[approved[0]][1] / 2 if approved else 0.0
        halves = sorted(approved, key=lambda index: abs(ranks[index][1] - half))[:1]  # two of it fill a budget
        smallest = approved[-1:]  # many of it fit into one
        return [self._samples[index] for index in dict.fromkeys([*order[:1], *smallest, *halves, *order])]

    def __iter__(self) -> Iterator[SampleCase]:
        return iter(self._samples)


def _vary_amounts(action: CompiledAction, sample: SampleCase, amounts: Mapping[str, Sequence[float]]) -> Iterator[SampleCase]:
    """Yield a sample with other amounts, where they fit the schema."""
    for name, numbers in amounts.items():
        for number in numbers[:AMOUNTS_MAX]:
            params = {**sample.params, name: int(number) if number.is_integer() else number}
            if not action.violations(params):
                yield sample._replace(params=params, case=sample.case.with_params(action.typed_params(params)))


def _at(sample: SampleCase, now_ms: int) -> Iterator[SampleCase]:
    """Yield a sample at another time, where its other attributes allow it."""
    assigned = {path: value for path, value in sample.assignment.items() if is_attribute(path)}
    attributes = complete_attributes({**sample.case.history, **assigned, NOW: now_ms}, len(sample.facts))
    if attributes is not None:
        yield sample._replace(case=build_case(sample.case.params, sample.case.facts, attributes))


def _magnitude(value: object) -> float:
    """Return the sum of the numbers in params; those beyond any amount count as 0."""
    if isinstance(value, Mapping):
        return sum(map(_magnitude, value.values()))
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= AMOUNT_MAX:
        return float(value)
    return 0.0


def _is_approved(action: CompiledAction, sample: SampleCase) -> bool:
    """Return whether the rules approve a sample; its counters may give any number."""
    matches = action.evaluate_reference(sample.case).matches
    return bool(matches) and matches[0].effect == "approve"

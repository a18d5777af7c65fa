"""Sample proposals of an action, on which generated histories end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

from gavel_rules.authoring.samples.attributes import BASE_TIME_MS, NOW, build_case, complete_attributes, is_attribute
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.cases import CaseGenerator, generate_cases
from gavel_rules.authoring.samples.hints import collect_hints_of
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.histories.count_comparison import CountComparison
from gavel_rules.authoring.suites.histories.counter_versions import CounterVersions
from gavel_rules.authoring.suites.histories.enumeration import indexes_by_sum
from gavel_rules.language.document.canonical_form import to_canonical_json
from gavel_rules.language.rule_set import CompiledAction

WORK_MAX: Final = 200_000  # steps of a Budget, to generate the proposals of one action
SAMPLES_MAX: Final = 40
AMOUNT_MAX: Final = 1e9
AMOUNTS_MAX: Final = 8  # of one param
VARIATIONS_MAX: Final = 200  # of one proposal, to find some that the versions count differently
COUNTED_MAX: Final = 4  # proposals that the versions count differently, each in another way


class ProposalSamples:
    """Proposals that tell the rules of both versions of an action apart, and a value of each fact of many subjects, by name.

    `amounts` has the amounts that are tried too, by param. Proposals come also at times at which one of the `counters` counts otherwise,
    and with values with which they count differently by the `comparison`.
    """

    def __init__(
        self,
        actions: tuple[CompiledAction, CompiledAction],
        seeds: Sequence[Seed],
        amounts: Mapping[str, Sequence[float]],
        counters: Iterable[CounterVersions],
        comparison: CountComparison,
    ) -> None:
        old, new = actions
        self._action = new
        self._comparison = comparison
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
            expressions = [*comparison.expressions, *(action.conflict_key_expression for action in actions)]
            of_counters = CaseGenerator(version, [other], Budget(WORK_MAX), seeds, expressions)
            counted = _vary_counts(of_counters, approved, comparison)
            with_key = _vary_conflict_key(of_counters, approved) if comparison.compares_sources else []
            varied = chain(counted, with_key, at_times, with_amounts, cases, *map(generator.vary_params, approved[:1]))
            for sample in islice(varied, SAMPLES_MAX // 2):
                samples.setdefault(_identity(sample), sample)
        self._samples = list(samples.values())

    def rank(self, are_approved: Iterator[bool]) -> list[SampleCase]:
        """Return the samples by rank: by approval of both versions, then by different counts, then by falling amounts.

        `are_approved` says of each sample whether both versions approve it, in the order of `__iter__`.
        """
        ranks = [
            (not approved, not self._comparison.differences(sample, is_approved=approved), -_magnitude(sample.params))
            for approved, sample in zip(are_approved, self._samples, strict=True)
        ]
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        best = [index for index in order if ranks[index][:2] == ranks[order[0]][:2] and not ranks[index][0]]
        half = ranks[best[0]][2] / 2 if best else 0.0
        halves = sorted(best, key=lambda index: abs(ranks[index][2] - half))[:1]  # two of these fill a budget
        smallest = best[-1:]  # many of these fit into a budget
        others = self._with_other_key(order)  # an open decision on these does not hold the key of the first
        return [self._samples[index] for index in dict.fromkeys([*order[:1], *others, *smallest, *halves, *order])]

    def _with_other_key(self, order: Sequence[int]) -> list[int]:
        """Return the first of some samples with another conflict key than the first one, if proposals may count by being refused."""
        if not self._comparison.compares_sources:
            return []
        keys = {index: self._action.conflict_key(self._samples[index].case) for index in order}
        return [index for index in order if keys[index] != keys[order[0]]][:1]

    def __iter__(self) -> Iterator[SampleCase]:
        return iter(self._samples)


def _vary_amounts(action: CompiledAction, sample: SampleCase, amounts: Mapping[str, Sequence[float]]) -> Iterator[SampleCase]:
    """Yield a sample with other amounts, where they fit the schema."""
    for name, numbers in amounts.items():
        for number in numbers[:AMOUNTS_MAX]:
            params = {**sample.params, name: int(number) if number.is_integer() else number}
            if not action.violations(params):
                yield sample._replace(params=params, case=sample.case.with_params(action.typed_params(params)))


def _vary_counts(generator: CaseGenerator, approved: Sequence[SampleCase], comparison: CountComparison) -> Iterator[SampleCase]:
    """Yield a proposal with other values of what the counters read, one for each way in which their versions count differently."""
    hints = collect_hints_of(comparison.expressions)
    paths = [path for path in sorted(hints) if "[]" not in path and (path.startswith("params.") or is_attribute(path))]
    options = [generator.values(path) for path in paths]
    seen: set[str] = set()
    for start in approved[:1] if paths else ():
        for indexes in islice(indexes_by_sum([len(values) for values in options]), VARIATIONS_MAX):
            values = (each[index] for each, index in zip(options, indexes, strict=True))
            sample = generator.vary(start, dict(zip(paths, values, strict=True)))
            found = repr(comparison.differences(sample, is_approved=True)) if sample is not None else ""
            if sample is not None and found != "[]" and found not in seen:
                seen.add(found)
                yield sample
            if len(seen) >= COUNTED_MAX:
                return


def _vary_conflict_key(generator: CaseGenerator, approved: Sequence[SampleCase]) -> Iterator[SampleCase]:
    """Yield a proposal with other params and another conflict key: one with the key of an open decision is rejected."""
    for start in approved[:1]:
        known = (None, generator.action.conflict_key(start.case))
        yield from islice((one for one in generator.vary_params(start) if generator.action.conflict_key(one.case) not in known), 1)


def _at(sample: SampleCase, now_ms: int) -> Iterator[SampleCase]:
    """Yield a sample at another time, where its other attributes allow it."""
    assigned = {path: value for path, value in sample.assignment.items() if is_attribute(path)}
    attributes = complete_attributes({**sample.case.history, **assigned, NOW: now_ms}, len(sample.facts))
    if attributes is not None:
        yield sample._replace(case=build_case(sample.case.params, sample.case.facts, attributes))


def _identity(sample: SampleCase) -> str:
    """Return a text that is equal for samples between which histories make no difference."""
    case = sample.case
    producer = (case.producer_type, case.producer_id, case.producer_groups)
    return repr((to_canonical_json(sample.params), sample.facts, case.now_ms, case.subject, *producer))


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

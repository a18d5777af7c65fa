"""Earlier facts and observations of generated histories, for the counters that count them.

Facts are generated from what the counter's expressions compare. The counter itself says, under each version, whether one counts, in which
group, with which amount and until when. Only facts of a group that the action reads are of use, and for an edited counter only those that
count differently. Their number follows from the numbers with which the counter is compared: at, just above and just below each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.hints import NO_HINTS, Hints, collect_hints_of
from gavel_rules.authoring.samples.values import Sampler, neighbours
from gavel_rules.authoring.suites.histories.counter_versions import CounterVersions, ages_ms, is_counted
from gavel_rules.authoring.suites.histories.enumeration import indexes_by_sum
from gavel_rules.authoring.suites.histories.thresholds import counts_around
from gavel_rules.language.counters.counter import (
    COUNT,
    DISTINCT,
    LAST,
    MAX,
    MIN,
    OBSERVATIONS,
    SUM,
    VALUE_SOURCES,
    Amount,
    CompiledCounter,
    CountedEvent,
    CounterError,
)
from gavel_rules.limits import PRODUCER_ID, RECORDABLE_SUBJECT
from gavel_rules.values import python_to_value, value_to_python

FACTS_MAX: Final = 100  # earlier facts of a history
FACTS_TRIED_MAX: Final = 1_500  # combinations of key, subject, source, value and age that are measured for one sample
KINDS_MAX: Final = 12  # facts that count differently from each other, for one sample
VALUES_MAX: Final = 40
KEYS_MAX: Final = 4
OPTIONS_MAX: Final = 8  # subjects, sources, and thresholds for which there are values
WORK_MAX: Final = 20_000  # steps of a Budget, to generate the values of a counter's facts

_FACT_TIER: Final = 1
_OBSERVATION_TIER: Final = 3
_ANY_VALUE: Final = ("boolean", "number", "string")


class EarlierFacts(NamedTuple):
    """Earlier facts of a history: all alike, at one age before the proposal, in milliseconds. Those of tier 3 are observations."""

    facts: int
    age_ms: int
    key: str
    subject: str
    source: str  # id of the producer, or the source tool of an observation
    tier: int
    value: object


class SampleReads(NamedTuple):
    """The values for which a sample proposal reads a counter: its groups, and the numbers that the counter is compared with."""

    subject: str
    now_ms: int
    groups: tuple[frozenset[str], frozenset[str]]  # under each version
    thresholds: tuple[float, ...]


class FactSource:
    """A source of earlier facts for one counter. `schemas` are the JSON Schemas of the facts that the document declares, by key."""

    def __init__(self, versions: CounterVersions, schemas: Mapping[str, Mapping[str, Any]], *, is_edited: bool) -> None:
        self.versions = versions
        self.is_edited = is_edited
        self.counts_in_read_group = False  # whether a fact was found that counts in a group that a sample reads
        self.needs_more = False  # whether a threshold was found beyond FACTS_MAX facts
        self._schemas = schemas
        self._hints = collect_hints_of(scoped for counter in versions if counter.source in VALUE_SOURCES for scoped in counter.expressions)

    def pasts(self, reads: SampleReads) -> Iterator[tuple[EarlierFacts, ...]]:
        """Yield earlier facts for a sample, the most telling first."""
        kinds = list(islice(self._kinds(reads), KINDS_MAX))
        counts = [self._counts(amounts, reads) for _, amounts in kinds]
        longest = max(map(len, counts), default=0)
        for index, at in indexes_by_sum([len(kinds), longest]) if longest else ():
            if at < len(counts[index]):
                fact, amounts = kinds[index]
                count = counts[index][at]
                yield (fact._replace(facts=count),)
                if count > 1 and any(counter.aggregate == DISTINCT for counter in self.versions):
                    yield from self._different(fact, count, amounts)
        if any(counter.aggregate in (MIN, MAX, LAST) for counter in self.versions):
            # One value after another: the first is older by a millisecond.
            for first, then in indexes_by_sum([len(kinds), len(kinds)]):
                if first != then:
                    older = kinds[first][0]
                    yield older._replace(age_ms=older.age_ms + 1), kinds[then][0]

    def _kinds(self, reads: SampleReads) -> Iterator[tuple[EarlierFacts, tuple[Amount | None, Amount | None]]]:
        """Yield one fact of each way to count, with its amounts under both versions. An edited counter counts it differently in each."""
        before, after = self.versions
        seen: set[object] = set()
        for fact in islice(self._facts(reads), FACTS_TRIED_MAX):
            event = _counted_event(fact)
            amounts = tuple(
                _amount(counter, fact, event, groups, reads.now_ms) for counter, groups in zip(self.versions, reads.groups, strict=True)
            )
            if amounts == (None, None):
                continue
            self.counts_in_read_group = True
            kind = tuple(
                (amount.group, amount.value, counter.scale) if amount is not None else None
                for counter, amount in zip(self.versions, amounts, strict=True)
            )
            is_alike = kind[0] == kind[1] and before.aggregate == after.aggregate
            is_alike = is_alike and not (before.aggregate == DISTINCT and before.measure != after.measure)
            if (self.is_edited and is_alike) or (kind, fact.age_ms) in seen:
                continue
            seen.add((kind, fact.age_ms))
            yield fact, (amounts[0], amounts[1])

    def _facts(self, reads: SampleReads) -> Iterator[EarlierFacts]:
        options: tuple[Sequence[Any], ...] = (
            self._keys_and_tiers(),
            self._subjects(reads),
            self._sources(reads),
            ages_ms([self.versions], reads.now_ms),
            self._values(reads),
        )
        for indexes in indexes_by_sum([len(one) for one in options]):
            (key, tier), subject, source, age_ms, value = (one[index] for one, index in zip(options, indexes, strict=True))
            yield EarlierFacts(1, age_ms, key, subject, source, tier, value)

    def _keys_and_tiers(self) -> list[tuple[str, int]]:
        """Return the keys that only one version counts, and then the others."""
        sources = [
            {(key, _OBSERVATION_TIER if counter.source == OBSERVATIONS else _FACT_TIER) for key in counter.fact_keys}
            for counter in self.versions
        ]
        return [*sorted(sources[0] ^ sources[1]), *sorted(sources[0] & sources[1])][:KEYS_MAX]

    def _subjects(self, reads: SampleReads) -> list[str]:
        groups = sorted(reads.groups[0] | reads.groups[1])
        own_type, _, own_id = reads.subject.partition("/")
        types, ids, subjects = (self._constants(path) for path in ("subject.type", "subject.id", "subject"))
        pairs = [f"{type_}/{id_}" for type_ in (*types, own_type) for id_ in (*groups, *ids, own_id)]
        typed = [f"{subject.rstrip('/')}/{id_}" for subject in subjects for id_ in (own_id, *groups)]  # of `startsWith("service/")`
        found = dict.fromkeys([reads.subject, *groups, *subjects, *pairs, *typed])
        return [one for one in found if re.fullmatch(RECORDABLE_SUBJECT, one)][:OPTIONS_MAX]

    def _sources(self, reads: SampleReads) -> list[str]:
        if all(counter.source == OBSERVATIONS for counter in self.versions):
            return ["test-source"]  # no expression reads the source tool of an observation
        found = dict.fromkeys(["test-source", *self._constants("producer.id"), *sorted(reads.groups[0] | reads.groups[1])])
        return [one for one in found if re.fullmatch(PRODUCER_ID, one)][:OPTIONS_MAX]

    def _values(self, reads: SampleReads) -> list[object]:
        key = self._keys_and_tiers()[0][0]
        hints = dict(self._hints)
        numbers = [number for threshold in reads.thresholds[:OPTIONS_MAX] for number in neighbours(threshold, is_integer=False)]
        hints["value"] = hints.get("value", NO_HINTS).with_constants([*sorted(reads.groups[0] | reads.groups[1]), *numbers])
        schema = self._schemas.get(key) or _schema_of_paths(hints)
        return Sampler(schema, hints, Budget(WORK_MAX)).values(schema, "value")[:VALUES_MAX]

    def _counts(self, amounts: Sequence[Amount | None], reads: SampleReads) -> list[int]:
        """Return numbers of facts with which the counter is at, above and below the numbers that it is compared with."""
        ratios: list[float] = []
        for counter, amount in zip(self.versions, amounts, strict=True):
            if amount is None or counter.aggregate not in (COUNT, SUM, DISTINCT):
                continue
            each = counter.from_units(amount.value) if isinstance(amount.value, int) else 1
            ratios.extend(threshold / each for threshold in reads.thresholds if each)
        self.needs_more |= any(ratio > FACTS_MAX for ratio in ratios)
        return [*dict.fromkeys([*counts_around(ratios, FACTS_MAX), 1, 2])]

    def _different(self, fact: EarlierFacts, count: int, amounts: Sequence[Amount | None]) -> Iterator[tuple[EarlierFacts, ...]]:
        """Yield facts of one group of which each counts as a different one: by value, by subject or by source."""
        counted = [(counter, amount) for counter, amount in zip(self.versions, amounts, strict=True) if amount is not None]
        for vary in (_vary_value, _vary_subject, _vary_source):
            varied = [vary(fact, number) for number in range(count)]
            events = [_counted_event(one) for one in varied]
            for counter, amount in counted:
                found = [_measure(counter, event) for event in events]
                values = {one.value for one in found if one is not None and one.group == amount.group}
                if len(values) == count:
                    yield tuple(varied)
                    break

    def _constants(self, path: str) -> list[str]:
        return [one for one in self._hints.get(path, NO_HINTS).constants if isinstance(one, str)]


def _counted_event(fact: EarlierFacts) -> CountedEvent:
    """Return a fact as counters read it when a case bus has recorded it."""
    value = value_to_python(python_to_value(fact.value))
    if fact.tier == _OBSERVATION_TIER:
        return CountedEvent("", {}, fact.subject, "AGENT", "agent", "", {"value": value, "trace.id": "case"})
    return CountedEvent("", {}, fact.subject, "API", fact.source, "", {"value": value, "trace.id": "facts"})


def _amount(counter: CompiledCounter, fact: EarlierFacts, event: CountedEvent, groups: frozenset[str], now_ms: int) -> Amount | None:
    """Return the amount with which a fact counts at `now_ms` in one of the groups; None if it does not."""
    tier = _OBSERVATION_TIER if counter.source == OBSERVATIONS else _FACT_TIER
    if counter.source not in VALUE_SOURCES or fact.tier != tier or fact.key not in counter.fact_keys:
        return None
    amount = _measure(counter, event)
    if amount is None or amount.group not in groups or not is_counted(counter, now_ms - fact.age_ms, now_ms):
        return None
    return amount


def _measure(counter: CompiledCounter, event: CountedEvent) -> Amount | None:
    try:
        return counter.amount_of(event)
    except CounterError:
        return None


def _schema_of_paths(hints: Mapping[str, Hints]) -> dict[str, Any]:
    """Return a JSON Schema of values with the fields that expressions read; their types are not declared."""
    plain = {"anyOf": [{"type": one} for one in _ANY_VALUE]}
    fields = [path.split(".")[1:] for path in hints if path.startswith("value.") and "[]" not in path]
    if not fields:
        return plain
    root: dict[str, Any] = {"type": "object", "properties": {}}
    for steps in sorted(fields, key=len):
        part = root
        for step in steps[:-1]:
            part = part["properties"].setdefault(step, {})
            if "properties" not in part:
                part.clear()
                part.update(type="object", properties={})
        last = part["properties"].setdefault(steps[-1], {})
        if "properties" not in last:
            compared = hints[".".join(("value", *steps))].constants
            types = dict.fromkeys("string" if isinstance(one, str) else "number" for one in compared)
            last.update({"anyOf": [{"type": one} for one in types or _ANY_VALUE]})
    _require_all(root)
    return root


def _require_all(schema: dict[str, Any]) -> None:
    if "properties" in schema:
        schema["required"] = sorted(schema["properties"])
        for part in schema["properties"].values():
            _require_all(part)


def _vary_value(fact: EarlierFacts, number: int) -> EarlierFacts:
    value = fact.value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return fact
    return fact._replace(value=f"{value}{number or ''}" if isinstance(value, str) else value + number)


def _vary_subject(fact: EarlierFacts, number: int) -> EarlierFacts:
    return fact._replace(subject=f"{fact.subject}{number or ''}")


def _vary_source(fact: EarlierFacts, number: int) -> EarlierFacts:
    return fact._replace(source=f"{fact.source}{number or ''}")

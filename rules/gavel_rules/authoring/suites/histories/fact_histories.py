"""Histories of an action with earlier facts, for the counters of facts that may tell its versions apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.paths import fact_schema
from gavel_rules.authoring.suites.histories.earlier_facts import FACTS_MAX, EarlierFacts, FactSource, SampleReads
from gavel_rules.authoring.suites.histories.edits import ActionEdits
from gavel_rules.authoring.suites.histories.enumeration import indexes_by_sum
from gavel_rules.authoring.suites.histories.history_cases import History, HistoryCases, Past
from gavel_rules.authoring.suites.histories.thresholds import Thresholds
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.rule_set import CompiledAction

SAMPLES_MAX: Final = 12  # proposals of one action for which earlier facts are sought
SAMPLES_MIN: Final = 2  # of each counter, however many there are
PASTS_MAX: Final = 40  # of one counter and proposal


class FactHistories:
    """The earlier facts of one action's histories. `names` are the counters for which there may be some."""

    def __init__(self, actions: tuple[CompiledAction, CompiledAction], edits: ActionEdits, thresholds: Thresholds) -> None:
        self._actions = actions
        self._edits = edits
        self._thresholds = thresholds
        schemas = {fact.key: fact_schema(fact._replace(subjects="")) for action in actions for fact in action.facts}
        self._sources = {
            name: FactSource(versions, schemas, is_edited=name in edits.counters)
            for name, versions in edits.telling.items()
            if versions.counts_facts
        }
        # Of the other counters that the rules read: some rules match only if several counters have their numbers.
        self._companions = {
            name: FactSource(versions, schemas, is_edited=False)
            for name, versions in edits.read.items()
            if versions.counts_facts and versions.before.digest == versions.after.digest
        }
        self.names: Final = tuple(self._sources)

    def histories(
        self, name: str, cases: HistoryCases, samples: Sequence[SampleCase], reports: Sequence[Mapping[str, Any] | None]
    ) -> Iterator[History]:
        """Yield histories with earlier facts that a counter counts."""
        source = self._sources[name]
        if source.is_edited and not source.versions.counts_differ:
            return
        pasts: list[list[tuple[EarlierFacts, ...]]] = []
        for sample in samples[: max(SAMPLES_MAX // len(self._sources), SAMPLES_MIN)]:
            plain = [*islice(source.pasts(self._reads(name, sample)), PASTS_MAX)]
            others = [(), *self.companions(name, sample)] if plain else []
            pasts.append([(*past, *more) for past in plain for more in others])
        longest = max(map(len, pasts), default=0)
        for number, index, at in indexes_by_sum([len(pasts), longest, len(reports)]):
            if index < len(pasts[number]):
                history = cases.history(samples[number], Past(None, pasts[number][index]), reports[at])
                if history is not None:
                    yield history

    def companions(self, name: str, sample: SampleCase) -> list[tuple[EarlierFacts, ...]]:
        """Return facts, for each rule that reads a counter, with which the other counters of the rule are above their thresholds."""
        found: list[tuple[EarlierFacts, ...]] = []
        for names in self._read_together(name):
            facts: list[EarlierFacts] = []
            for other in sorted(names & self._companions.keys()):
                pasts = islice(self._companions[other].pasts(self._reads(other, sample)), PASTS_MAX)
                facts.extend(max(pasts, key=lambda past: sum(one.facts for one in past), default=()))
            if facts and tuple(facts) not in found:
                found.append(tuple(facts))
        return found

    def reason(self, name: str) -> str:
        """Return why no history with earlier facts shows the edit of a counter, "" if none is known. Call it after the search."""
        source = self._sources.get(name)
        if source is not None and not source.counts_in_read_group:
            return "no generated fact counts in a group that the rules read"
        if source is not None and source.needs_more:
            return f"at most {FACTS_MAX} earlier facts are tried, and a number that it is compared with needs more"
        return ""

    def _read_together(self, name: str) -> Iterator[set[str]]:
        """Yield the other counters of each rule that reads a counter."""
        for action in self._actions:
            for condition in action.conditions:
                variables = ScopedExpression(action.environment, condition).names()
                names = {read.counter for read in action.counter_reads if read.variable in variables}
                if name in names:
                    yield names - {name}

    def _reads(self, name: str, sample: SampleCase) -> SampleReads:
        """Return the groups of a counter that a sample reads, and the numbers that it is compared with."""
        case = sample.case
        # The key of a derivation is known only when its report is.
        texts = (value for value in (*sample.params.values(), *sample.facts.values()) if isinstance(value, str))
        is_derived_from = any(one.counter == name for rule in self._edits.deriving for one in rule.counter_reads)
        of_reports = {"", case.subject, case.producer_id, *texts} if is_derived_from else set()
        groups: list[frozenset[str]] = []
        for action in self._actions:
            keys = action.counter_keys(case) if action.counter_places else []
            read = (keys[place.key] for place in action.counter_places if place.counter == name)
            groups.append(frozenset({*of_reports, *(key for key in read if key is not None)}))
        thresholds = self._thresholds.of_counter(name, {**sample.params, **sample.facts}.values())
        return SampleReads(case.subject, case.now_ms, (groups[0], groups[1]), thresholds)

"""Generated histories that two versions of a rule set treat differently: a diff of counters and derivations.

Generated cases of `diff` give each counter some number, whatever it counts, and know no executions. A history has both: some earlier
proposals of an action with their reports, or some earlier facts (`earlier_facts`), the time since, a proposal, and the report of its
execution. The real core runs it under each version (`case_bus`). Histories are sought for actions that read a counter, or have a
derivation, that was edited. They are tried from the plainest on, at most PROPOSALS_MAX proposals for each action, and as many with
earlier facts: an edit without a history may still change decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, Final, NamedTuple

from gavel.v1.decision_pb2 import Outcome

from gavel_rules.authoring.derived_facts import DerivedFact, derived_facts, facts_beyond
from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.meanings import CounterLabels, label_counters, rule_meanings
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.hints import collect_hints
from gavel_rules.authoring.samples.paths import fact_schema
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.case_bus import CaseBus, CaseBusError, CaseRun
from gavel_rules.authoring.suites.histories.earlier_facts import (
    FACTS_MAX,
    CounterVersions,
    EarlierFacts,
    FactSource,
    SampleReads,
    thresholds_of,
)
from gavel_rules.authoring.suites.histories.earlier_proposals import EarlierProposals
from gavel_rules.authoring.suites.histories.edits import deciding_counters, differing_counters, edited_counters, edited_derivations
from gavel_rules.authoring.suites.histories.enumeration import indexes_by_sum
from gavel_rules.authoring.suites.histories.history_cases import Earlier, HistoryCases, Past
from gavel_rules.authoring.suites.histories.proposal_samples import ProposalSamples
from gavel_rules.authoring.suites.histories.sample_reports import PLAIN_NUMBER, sample_reports
from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.authoring.suites.runner import resolve_cases
from gavel_rules.authoring.suites.suite import Suite, SuiteCase
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.counters.counter import SUM, VALUE_SOURCES, CompiledCounter
from gavel_rules.language.document.diagnostics import DocumentError, Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.rule_set import CompiledRuleSet

PROPOSALS_MAX: Final = 600  # of the histories of one action, under each version
HISTORIES_SHOWN_MAX: Final = 4  # of one action and kind of history
FACT_SAMPLES_MAX: Final = 12  # proposals of one action for which earlier facts are sought
FACT_SAMPLES_MIN: Final = 2  # of each counter, however many there are
PASTS_MAX: Final = 40  # of one counter and proposal

_REFUSED: Final = "the core refuses to put one of the versions in force"
_APPROVED: Final = "APPROVED"


class HistoryChange(NamedTuple):
    """A history that two versions treat differently: by the decision on its last proposal, or by the facts derived from its execution."""

    action: str
    earlier: Earlier | None
    subject: str
    producer: str
    params: Mapping[str, object]
    facts: Mapping[str, object]
    execution: Mapping[str, Any] | None  # the report, as suites write it; None: not carried out
    before: CaseDecision
    after: CaseDecision
    derived_before: tuple[DerivedFact, ...]
    derived_after: tuple[DerivedFact, ...]
    earlier_facts: tuple[EarlierFacts, ...]
    now: str  # the time of the last proposal, as suites write it


class NotAnalysed(NamedTuple):
    """An edit that no history shows, "counters.NAME" or "derivations.ID", and why."""

    name: str
    reason: str


class HistoryDiff(NamedTuple):
    """The histories that two versions treat differently, and the edited counters and derivations of which no history shows the edit.

    A counter that nothing reads is neither.
    """

    changes: tuple[HistoryChange, ...]
    not_analysed: tuple[NotAnalysed, ...]


def compare_histories(old: CompiledRuleSet, new: CompiledRuleSet, seeds: Sequence[Seed] = ()) -> HistoryDiff:
    """Return the histories that two versions treat differently. `seeds` are known cases of either."""
    labels = label_counters(old, new)
    counters = edited_counters(old, new, labels)
    derivations = {rule.id for rule in edited_derivations(old, new, labels)}
    if not counters and not derivations:
        return HistoryDiff((), ())
    changes: list[HistoryChange] = []
    edits: dict[str, str] = {}  # with the reason why none is shown
    shown: set[str] = set()
    buses = _open_buses(old, new)
    for name in sorted({*old.actions} & {*new.actions}):
        action = _Action(name, old, new, labels, counters, derivations, seeds)
        changes.extend(action.changes(buses) if action.edits and buses is not None else ())
        shown |= action.shown
        edits.update((edit, _REFUSED if buses is None else action.reason(edit)) for edit in action.edits)
    return HistoryDiff(tuple(changes), tuple(NotAnalysed(edit, edits[edit]) for edit in sorted(edits) if edit not in shown))


def _open_buses(old: CompiledRuleSet, new: CompiledRuleSet) -> tuple[CaseBus, CaseBus] | None:
    """Return a bus with each version in force; None if the core refuses one of them."""
    try:
        return CaseBus(old), CaseBus(new)
    except CaseBusError:
        return None


class _Action:
    """An action that both versions have.

    `edits` are the edited counters that it reads, and its edited derivations. `shown` are those that a history has shown.
    """

    def __init__(
        self,
        name: str,
        old: CompiledRuleSet,
        new: CompiledRuleSet,
        labels: CounterLabels,
        counters: set[str],
        derivations: set[str],
        seeds: Sequence[Seed],
    ) -> None:
        self._name = name
        self._versions = (old, new)
        self._actions = (old.actions[name], new.actions[name])
        self._seeds = seeds
        rules = [rule for version in (old, new) for rule in version.derivations if rule.action_type == name]
        self._derivations = [rule for rule in rules if rule.id in derivations]
        read = {counter.name for action in self._actions for counter in (*action.read_counters, *action.reserving_counters)}
        read |= {one.counter for rule in rules for one in rule.counter_reads}
        # The derivations from whose reports an edit may show, and the counters whose numbers decide that.
        self._deriving = [rule for rule in rules if rule.id in derivations or any(one.counter in counters for one in rule.counter_reads)]
        needed = (read & counters) | {one.counter for rule in self._deriving for one in rule.counter_reads}
        counted = [
            version.counters[one]
            for one in sorted(needed)
            for version in (old, new)
            if one in version.counters and version.counters[one].source not in VALUE_SOURCES
        ]
        pairs = {
            one: CounterVersions(old.counters.get(one) or new.counters[one], new.counters.get(one) or old.counters[one])
            for one in sorted(read)
        }
        self._counter_versions = {one: pairs[one] for one in read & counters}
        schemas = {fact.key: fact_schema(fact._replace(subjects="")) for action in self._actions for fact in action.facts}
        self._fact_sources = {
            one: FactSource(pair, schemas, is_edited=one in counters) for one, pair in pairs.items() if pair.counts_facts and one in needed
        }
        # Of the other counters that the rules read: some rules match only if several counters have their numbers.
        self._companions = {
            one: FactSource(pair, schemas, is_edited=False)
            for one, pair in pairs.items()
            if pair.counts_facts and pair.before.digest == pair.after.digest
        }
        documents = [version.canonical_json for version in self._versions]
        self._amounts = self._compared_amounts(counted)
        halves = [numbers[-1] for numbers in self._amounts.values() if numbers]
        self._earlier = EarlierProposals(self._actions, counted, self._deriving, documents, halves[0] if halves else PLAIN_NUMBER)
        self.shown: set[str] = set()
        self.edits = {f"counters.{one}" for one in read & counters} | {f"derivations.{rule.id}" for rule in self._derivations}
        parts = [
            (rule_meanings(version.actions[name], of_version), json.loads(version.canonical_json)["actions"][name])
            for version, of_version in zip((old, new), labels, strict=True)
        ]
        # Then the edit explains each history that the versions decide differently.
        self._is_only_edit = len(self.edits) == len(self._derivations) == 1 and parts[0] == parts[1]

    @cached_property
    def _proposals(self) -> ProposalSamples:
        return ProposalSamples(self._actions, self._seeds, self._amounts)

    @cached_property
    def _cases(self) -> HistoryCases:
        return HistoryCases(self._actions, self._proposals.values_of_many)

    def _compared_amounts(self, counters: Iterable[CompiledCounter]) -> dict[str, list[float]]:
        """Return the numbers with which counters that add a param up are compared, by param, then halves of them.

        Two halves fit under a limit, and with another amount in place of one they do not. If a scale is edited, the halves are not whole:
        one of them may be rounded up.
        """
        amounts: dict[str, list[float]] = {}
        expressions = [ScopedExpression(action.environment, one) for action in self._actions for one in action.conditions]
        expressions.extend(rule.value_expression for rule in self._deriving)
        for counter in counters:
            scoped = counter.expressions.amount if counter.aggregate == SUM else None
            for name in sorted(scoped.names()) if scoped is not None else ():
                root, _, param = name.partition(".")
                if root == "params" and "." not in param:
                    numbers = thresholds_of(_compared_numbers(counter.name, expressions), {})
                    known = amounts.setdefault(param, [])
                    versions = self._counter_versions.get(counter.name)
                    is_rounded = versions is not None and versions.before.scale != versions.after.scale
                    halves = [number / 2 + step for number in numbers for step in ((0.5, -0.5) if is_rounded else (0,))]
                    known.extend(number for number in (*numbers, *halves) if number not in known)
        return amounts

    def changes(self, buses: tuple[CaseBus, CaseBus]) -> Iterator[HistoryChange]:
        """Yield histories that the versions treat differently: one for each pair of decisions and each fact, and one for each edit."""
        seen: set[object] = set()
        samples = self._samples(buses)
        searches = [(f"counters.{name}", self._histories_of_facts(name, samples)) for name in self._fact_sources]
        searches += [("", self._histories([(sample, ()) for sample in samples])), ("", self._histories_of_both(buses, samples))]
        for edit, histories in searches:
            left = PROPOSALS_MAX // len(self._fact_sources) if edit else PROPOSALS_MAX
            found = 0
            for part, past, sample in histories:
                left -= len(part.earlier) + 1
                if left < 0 or found >= HISTORIES_SHOWN_MAX or edit in self.shown or self.shown == self.edits:
                    break
                before, after = self._runs(buses, part)
                if before is None or after is None or _earlier_decisions(before) != _earlier_decisions(after):
                    continue
                change = self._change(part, past, sample, before, after)
                keys = sorted({fact.key for fact in (*change.derived_before, *change.derived_after)})
                key = (change.before, change.after, *keys)
                if change.before == change.after and not keys:
                    continue
                before, after = self._runs(buses, part, explain=True)
                edits = self._edits_shown_by(change, before, after) if before is not None and after is not None else set()
                if key not in seen or not edits <= self.shown:
                    seen.add(key)
                    found += 1
                    self.shown |= edits
                    yield change

    def reason(self, edit: str) -> str:
        """Return why no history shows an edit. Call it when `changes` has ended."""
        root, _, name = edit.partition(".")
        versions = self._counter_versions.get(name) if root == "counters" else None
        if versions is not None and not versions.differ:
            return "only its limits differ, which no generated history reaches"
        if versions is not None and not versions.counts_facts and not any(self._name in counter.actions for counter in versions):
            return "it counts other actions, and the earlier proposals of a history are of the action that reads it"
        source = self._fact_sources.get(name) if root == "counters" else None
        if source is not None and not source.counts_in_read_group:
            return "no generated fact counts in a group that the rules read"
        if source is not None and source.needs_more:
            return f"at most {FACTS_MAX} earlier facts are tried, and a number that it is compared with needs more"
        return "no generated history is treated differently"

    def _edits_shown_by(self, change: HistoryChange, before: CaseRun, after: CaseRun) -> set[str]:
        """Return the edits that a history shows: the counters that matter for its decisions or facts, and the derivations of the facts.

        The runs have been explained.
        """
        if change.before != change.after and self._is_only_edit:
            return set(self.edits)
        names: set[str] = set()
        if change.before != change.after and before.cases and after.cases:
            names = deciding_counters(self._counter_versions, before.cases[0], after.cases[0])
        keys = {fact.key for fact in (*change.derived_before, *change.derived_after)}
        deriving = [rule for rule in self._deriving if rule.key in keys]
        if before.consequences is not None and after.consequences is not None:
            readings = (run.report.execution.counters for run in (before.consequences, after.consequences))
            # An edited derivation says nothing of the counters that it reads.
            read = {one.counter for rule in deriving if rule not in self._derivations for one in rule.counter_reads}
            names |= read & differing_counters(*readings)
        return {*(f"counters.{name}" for name in names), *(f"derivations.{rule.id}" for rule in deriving)} & self.edits

    def _change(self, part: CasePart, past: Past, sample: SampleCase, before: CaseRun, after: CaseRun) -> HistoryChange:
        # Where one version approves nothing, the decisions tell why it derives nothing.
        are_carried_out = before.consequences is not None and after.consequences is not None
        facts_before, facts_after = (_facts(before), _facts(after)) if are_carried_out else ((), ())
        return HistoryChange(
            self._name,
            past.proposals,
            part.subject,
            part.producer.id,
            part.params,
            sample.facts,
            part.execution.model_dump(exclude_defaults=True) if part.execution is not None and are_carried_out else None,
            _decision(before),
            _decision(after),
            facts_beyond(facts_before, facts_after),
            facts_beyond(facts_after, facts_before),
            past.facts,
            part.now,
        )

    def _runs(self, buses: tuple[CaseBus, CaseBus], part: CasePart, *, explain: bool = False) -> tuple[CaseRun | None, CaseRun | None]:
        (before, after), (old, new) = buses, self._versions
        return self._run(before, old, part, explain=explain), self._run(after, new, part, explain=explain)

    def _run(self, bus: CaseBus, version: CompiledRuleSet, part: CasePart, *, explain: bool) -> CaseRun | None:
        """Return a run of a history; None if it does not fit the version."""
        suite = Suite("", (), "", (SuiteCase("", part, (), {}),), Source("{}", Messages()))
        try:
            ((case, facts, action),) = resolve_cases(suite, version)
            return bus.run(case, facts, action, explain=explain)
        except (CaseBusError, DocumentError):
            return None

    def _samples(self, buses: tuple[CaseBus, CaseBus]) -> list[SampleCase]:
        """Return proposals, first those that the core approves under both versions."""
        return self._proposals.rank(self._is_approved(buses, sample) for sample in self._proposals)

    def _is_approved(self, buses: tuple[CaseBus, CaseBus], sample: SampleCase, facts: tuple[EarlierFacts, ...] = ()) -> bool:
        part = self._cases.write(sample, Past(None, facts), None)
        runs = self._runs(buses, part) if part is not None else ()
        return bool(runs) and all(run is not None and _decision(run).outcome == _APPROVED for run in runs)

    def _histories_of_facts(self, name: str, samples: Sequence[SampleCase]) -> Iterator[tuple[CasePart, Past, SampleCase]]:
        """Yield histories with earlier facts that a counter counts."""
        source = self._fact_sources[name]
        if source.is_edited and not source.versions.differ:
            return
        reports: list[Mapping[str, Any] | None] = [*sample_reports(self._deriving)] or [None]
        pasts: list[list[tuple[EarlierFacts, ...]]] = []
        for sample in samples[: max(FACT_SAMPLES_MAX // len(self._fact_sources), FACT_SAMPLES_MIN)]:
            plain = [*islice(source.pasts(self._reads(name, sample)), PASTS_MAX)]
            others = [(), *self._companion_facts(name, sample)] if plain else []
            pasts.append([(*past, *more) for past in plain for more in others])
        longest = max(map(len, pasts), default=0)
        for number, index, at in indexes_by_sum([len(pasts), longest, len(reports)]):
            if index < len(pasts[number]):
                past = Past(None, pasts[number][index])
                part = self._cases.write(samples[number], past, reports[at])
                if part is not None:
                    yield part, past, samples[number]

    def _companion_facts(self, name: str, sample: SampleCase) -> list[tuple[EarlierFacts, ...]]:
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
        deriving = [rule for rule in self._deriving if any(one.counter == name for one in rule.counter_reads)]
        # The key of a derivation is known only when its report is.
        texts = (value for value in (*sample.params.values(), *sample.facts.values()) if isinstance(value, str))
        of_reports = {"", case.subject, case.producer_id, *texts} if deriving else set()
        groups: list[frozenset[str]] = []
        constants: list[object] = []
        for action in self._actions:
            keys = action.counter_keys(case) if action.counter_places else []
            read = (keys[place.key] for place in action.counter_places if place.counter == name)
            groups.append(frozenset({*of_reports, *(key for key in read if key is not None)}))
            constants.extend(_compared_numbers(name, (ScopedExpression(action.environment, one) for one in action.conditions)))
        constants.extend(_compared_numbers(name, (rule.value_expression for rule in deriving)))
        thresholds = thresholds_of(constants, {**sample.params, **sample.facts})
        return SampleReads(case.subject, case.now_ms, (groups[0], groups[1]), thresholds)

    def _histories_of_both(
        self, buses: tuple[CaseBus, CaseBus], samples: Sequence[SampleCase]
    ) -> Iterator[tuple[CasePart, Past, SampleCase]]:
        """Yield histories of edited counters with earlier proposals, and with facts for the other counters of a rule."""
        names = sorted({counter.name for counter in self._earlier.counters} & self._counter_versions.keys())
        with_facts = [(sample, facts) for sample in samples for name in names for facts in self._companion_facts(name, sample)]
        with_facts.sort(key=lambda one: not self._is_approved(buses, *one))
        yield from self._histories(with_facts)

    def _histories(self, samples: Sequence[tuple[SampleCase, tuple[EarlierFacts, ...]]]) -> Iterator[tuple[CasePart, Past, SampleCase]]:
        """Yield histories, the plainest first: those whose parts are early among the options of each part.

        The earlier proposals are like the last one, or like one of the next samples. Each sample comes with earlier facts.
        """
        if not self._earlier.counters and not self._deriving:
            return
        reports: list[Mapping[str, Any] | None] = [*sample_reports(self._deriving)] or [None]
        counts, ages, earlier_reports, others, steps = self._earlier.options(len(samples))
        options: tuple[Sequence[Any], ...] = (range(len(samples)), reports, counts, ages, earlier_reports, others, steps)
        for indexes in indexes_by_sum([len(one) for one in options]):
            number, report, count, age_ms, earlier_report, other, step = (one[index] for one, index in zip(options, indexes, strict=True))
            (sample, facts), (first, _) = samples[number], samples[(number + step) % len(samples)]
            past = Past(self._earlier.past(sample.case, first, count, age_ms, earlier_report, other), facts)
            part = self._cases.write(sample, past, report)
            if part is not None:
                yield part, past, sample


def _compared_numbers(counter: str, expressions: Iterable[ScopedExpression]) -> Iterator[object]:
    """Yield the constants that a counter is compared with."""
    for environment, expression in expressions:
        variables = {read.variable for read in environment.counter_reads.all() if read.counter == counter}
        for path, hints in collect_hints(expression.tree, environment.types).items() if variables else ():
            if path in variables:
                yield from hints.constants


def _earlier_decisions(run: CaseRun) -> list[tuple[Any, ...]]:
    return [(one.decision.outcome, one.decision.reason_code) if one.decision is not None else () for one in run.earlier]


def _facts(run: CaseRun) -> tuple[DerivedFact, ...]:
    return derived_facts(run.consequences.facts) if run.consequences is not None else ()


def _decision(run: CaseRun) -> CaseDecision:
    decision = run.decision
    return CaseDecision(Outcome.Name(decision.outcome).removeprefix("OUTCOME_"), decision.reason_code, decision.rule_id)

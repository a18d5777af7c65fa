"""Generated histories that two versions of a rule set treat differently: a diff of counters and derivations.

Generated cases of `diff` give each counter some number, whatever it counts, and know no executions. A history has both: some earlier
proposals of an action with their reports, or some earlier facts (`earlier_facts`), the time since, a proposal, and the report of its
execution. The real core runs it under each version (`case_bus`). Histories are sought for actions that read a counter, or have a
derivation, that was edited. They are tried from the plainest on, at most PROPOSALS_MAX proposals for each action, and as many with
earlier facts: an edit without a history may still change decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from gavel.v1.decision_pb2 import Outcome
from pydantic import ValidationError

from gavel_rules.authoring.derived_facts import DerivedFact, derived_facts, facts_beyond
from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.cases import CaseGenerator, generate_cases
from gavel_rules.authoring.samples.hints import collect_hints
from gavel_rules.authoring.samples.paths import fact_schema
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.case_bus import CaseBus, CaseBusError, CaseRun
from gavel_rules.authoring.suites.histories.earlier_facts import (
    FACTS_MAX,
    SOURCES,
    CounterVersions,
    EarlierFacts,
    FactSource,
    SampleReads,
    thresholds_of,
)
from gavel_rules.authoring.suites.histories.enumeration import indexes_by_sum
from gavel_rules.authoring.suites.histories.sample_reports import sample_reports
from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.authoring.suites.runner import resolve_cases
from gavel_rules.authoring.suites.suite import Suite, SuiteCase
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.vocabulary import COUNTER_READS
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.document.diagnostics import DocumentError, Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.engines.case import Proposer
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

PROPOSALS_MAX: Final = 300  # of the histories of one action, under each version
COUNT_MAX: Final = 12  # earlier proposals of a history
HISTORIES_SHOWN_MAX: Final = 4  # of one action
WORK_MAX: Final = 200_000  # steps of a Budget, to generate the proposals of one action
SAMPLES_MAX: Final = 40
EARLIER_SAMPLES_MAX: Final = 6
AMOUNT_MAX: Final = 1e9
DAY_MS: Final = 86_400_000

FACT_SAMPLES_MAX: Final = 12  # proposals of one action for which earlier facts are sought
FACT_SAMPLES_MIN: Final = 2  # of each counter, however many there are
PASTS_MAX: Final = 40  # of one counter and proposal

_REFUSED: Final = "the core refuses to put one of the versions in force"
_APPROVED: Final = "APPROVED"
_STATUSES: Final = ("SUCCESS", "FAILED", "ABORTED", "TIMEOUT", "PARTIAL")
_STATUSES_OF_ANY: Final = ("SUCCESS", "ABORTED", "FAILED")
_OTHER_SUBJECT: Final = "-earlier"
_OTHER_PRODUCER: Final = "another-agent"


class Earlier(NamedTuple):
    """The earlier proposals of a history: all alike, all at one age before the last one, in milliseconds."""

    proposals: int
    age_ms: int
    params: Mapping[str, object]
    subject: str
    producer: str  # id
    status: str  # of the report of each execution; "": not carried out


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
    earlier_facts: tuple[EarlierFacts, ...] = ()


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
    counters = {name for name, counter in old.counters.items() if name in new.counters and new.counters[name].digest != counter.digest}
    derivations = {rule.id for rule in _edited_derivations(old, new)}
    if not counters and not derivations:
        return HistoryDiff((), ())
    changes: list[HistoryChange] = []
    edits: dict[str, str] = {}  # with the reason why none is shown
    shown: set[str] = set()
    buses = _open_buses(old, new)
    for name in sorted({*old.actions} & {*new.actions}):
        action = _Action(name, old, new, counters, derivations, seeds)
        for change in action.changes(buses) if action.edits and buses is not None else ():
            changes.append(change)
            shown |= action.edits_shown_by(change)
        edits.update((edit, _REFUSED if buses is None else action.reason(edit)) for edit in action.edits)
    return HistoryDiff(tuple(changes), tuple(NotAnalysed(edit, edits[edit]) for edit in sorted(edits) if edit not in shown))


def _edited_derivations(old: CompiledRuleSet, new: CompiledRuleSet) -> Iterator[DerivationRule]:
    """Yield the derivations that only one version has, or that mean something else in each."""
    before, after = ({rule.id: rule for rule in version.derivations} for version in (old, new))
    for rule_id in {**before, **after}:
        pair = [version[rule_id] for version in (before, after) if rule_id in version]
        if len(pair) == 1 or _meaning(pair[0]) != _meaning(pair[1]):
            yield pair[-1]


def _meaning(rule: DerivationRule) -> tuple[object, ...]:
    subject = rule.subject_expression
    return (
        rule.action_type,
        rule.status,
        rule.key,
        rule.value_expression.expression.tree,
        subject.expression.tree if subject is not None else None,
        rule.counter_reads,
    )


def _open_buses(old: CompiledRuleSet, new: CompiledRuleSet) -> tuple[CaseBus, CaseBus] | None:
    """Return a bus with each version in force; None if the core refuses one of them."""
    try:
        return CaseBus(old), CaseBus(new)
    except CaseBusError:
        return None


class _Past(NamedTuple):
    """What happens before the last proposal of a history."""

    proposals: Earlier | None = None
    facts: tuple[EarlierFacts, ...] = ()


class _Action:
    """An action that both versions have. `edits` are the edited counters that it reads, and its edited derivations."""

    def __init__(
        self, name: str, old: CompiledRuleSet, new: CompiledRuleSet, counters: set[str], derivations: set[str], seeds: Sequence[Seed]
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
        self._counters = [
            version.counters[one]
            for one in sorted(needed)
            for version in (old, new)
            if one in version.counters and version.counters[one].source not in SOURCES
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
        self._values_of_many: dict[str, list[object]] = {}  # of a fact of many subjects, by name
        self.edits = {f"counters.{one}" for one in read & counters} | {f"derivations.{rule.id}" for rule in self._derivations}

    def changes(self, buses: tuple[CaseBus, CaseBus]) -> Iterator[HistoryChange]:
        """Yield histories that the versions treat differently: one for each pair of decisions and each fact."""
        seen: set[object] = set()
        shown: set[str] = set()
        samples = self._samples(buses)
        searches = [(f"counters.{name}", self._histories_of_facts(name, samples)) for name in self._fact_sources]
        for edit, histories in [*searches, ("", self._histories(samples))]:
            left = PROPOSALS_MAX // max(len(searches), 1) if edit else PROPOSALS_MAX
            found = 0
            for part, past, sample in histories:
                left -= len(part.earlier) + 1
                if left < 0 or found >= HISTORIES_SHOWN_MAX or edit in shown or shown == self.edits:
                    break
                before, after = self._runs(buses, part)
                if before is None or after is None or _earlier_decisions(before) != _earlier_decisions(after):
                    continue
                change = self._change(part, past, sample, before, after)
                keys = sorted({fact.key for fact in (*change.derived_before, *change.derived_after)})
                key = (change.before, change.after, *keys)
                if (change.before != change.after or keys) and key not in seen:
                    seen.add(key)
                    found += 1
                    shown |= self.edits_shown_by(change)
                    yield change

    def reason(self, edit: str) -> str:
        """Return why no history shows an edit. Call it when `changes` has ended."""
        root, _, name = edit.partition(".")
        versions = self._counter_versions.get(name) if root == "counters" else None
        if versions is not None and not versions.differ:
            return "only its limits differ, which no generated history reaches"
        source = self._fact_sources.get(name) if root == "counters" else None
        if source is not None and not source.counts_in_read_group:
            return "no generated fact counts in a group that the rules read"
        if source is not None and source.needs_more:
            return f"at most {FACTS_MAX} earlier facts are tried, and a number that it is compared with needs more"
        return "no generated history is treated differently"

    def edits_shown_by(self, change: HistoryChange) -> set[str]:
        """Return the edits that a history shows: those that the rules with different decisions, and the derivations of the facts, read."""
        rule_ids = {change.before.rule_id, change.after.rule_id} if change.before != change.after else set()
        names = {
            name
            for action in self._actions
            for rule, condition in zip(action.rules, action.conditions, strict=True)
            if rule.id in rule_ids
            for name in ScopedExpression(action.environment, condition).names()
        }
        reads = {read for action in self._actions for read in action.counter_reads if read.variable in names}
        keys = {fact.key for fact in (*change.derived_before, *change.derived_after)}
        deriving = [rule for rule in self._deriving if rule.key in keys]
        # An edited derivation says nothing of the counters that it reads.
        reads.update(read for rule in deriving if rule not in self._derivations for read in rule.counter_reads)
        return {*(f"counters.{read.counter}" for read in reads), *(f"derivations.{rule.id}" for rule in deriving)} & self.edits

    def _change(self, part: CasePart, past: _Past, sample: SampleCase, before: CaseRun, after: CaseRun) -> HistoryChange:
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
        )

    def _runs(self, buses: tuple[CaseBus, CaseBus], part: CasePart) -> tuple[CaseRun | None, CaseRun | None]:
        (before, after), (old, new) = buses, self._versions
        return self._run(before, old, part), self._run(after, new, part)

    def _run(self, bus: CaseBus, version: CompiledRuleSet, part: CasePart) -> CaseRun | None:
        """Return a run of a history; None if it does not fit the version."""
        suite = Suite("", (), "", (SuiteCase("", part, (), {}),), Source("{}", Messages()))
        try:
            ((case, facts, action),) = resolve_cases(suite, version)
            return bus.run(case, facts, action, explain=False)
        except (CaseBusError, DocumentError):
            return None

    def _samples(self, buses: tuple[CaseBus, CaseBus]) -> list[SampleCase]:
        """Return proposals that tell the rules of both versions apart: first those that both approve, the largest amounts before others."""
        old, new = self._actions
        samples: dict[str, SampleCase] = {}
        for version, other in ((new, old), (old, new)):
            generator = CaseGenerator(version, [other], Budget(WORK_MAX), self._seeds)
            for fact in version.facts:
                lists = (value for value in generator.values(f"facts.{fact.name}") if isinstance(value, list) and value)
                self._values_of_many.setdefault(fact.name, next(lists, []))
            cases = generate_cases(version, SAMPLES_MAX // 4, generator)
            approved = [one for one in cases if _is_approved(version, one)]
            for sample in islice(chain(cases, *map(generator.vary_params, approved[:1])), SAMPLES_MAX // 2):
                case = sample.case
                key = (sample.params, sample.facts, case.now_ms, case.subject, case.producer_type, case.producer_id, case.producer_groups)
                samples.setdefault(repr(key), sample)
        ranks: dict[int, tuple[bool, float]] = {}
        for index, sample in enumerate(samples.values()):
            part = self._part(sample, _Past(), None)
            runs = self._runs(buses, part) if part is not None else ()
            are_approved = bool(runs) and all(run is not None and _decision(run).outcome == _APPROVED for run in runs)
            ranks[index] = (not are_approved, -_magnitude(sample.params))
        ordered = list(samples.values())
        order = sorted(ranks, key=ranks.__getitem__)
        smallest = [index for index in order if not ranks[index][0]][-1:]  # of those approved: many of it fit into a budget
        return [ordered[index] for index in dict.fromkeys([*order[:1], *smallest, *order])]

    def _histories_of_facts(self, name: str, samples: Sequence[SampleCase]) -> Iterator[tuple[CasePart, _Past, SampleCase]]:
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
                past = _Past(None, pasts[number][index])
                part = self._part(samples[number], past, reports[at])
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

    def _histories(self, samples: Sequence[SampleCase]) -> Iterator[tuple[CasePart, _Past, SampleCase]]:
        """Yield histories, the plainest first: those whose parts are early among the options of each part.

        The earlier proposals are like the last one, or like one of the next samples.
        """
        if not self._counters and not self._deriving:
            return
        reports: list[Mapping[str, Any] | None] = [*sample_reports(self._deriving)] or [None]
        counts: Sequence[int] = self._counts() if self._counters else [0]
        ages: Sequence[int] = self._ages() if self._counters else [0]
        statuses = self._statuses() if self._counters else [""]
        others = [(False, False), (True, False), (False, True)] if self._counters else [(False, False)]
        steps = range(min(len(samples), EARLIER_SAMPLES_MAX) if self._counters else 1)
        options: tuple[Sequence[Any], ...] = (range(len(samples)), reports, counts, ages, statuses, others, steps)
        for indexes in indexes_by_sum([len(one) for one in options]):
            number, report, count, age_ms, status, (is_other_subject, is_other_producer), step = (
                one[index] for one, index in zip(options, indexes, strict=True)
            )
            sample, first = samples[number], samples[(number + step) % len(samples)]
            case = sample.case
            subject = case.subject + _OTHER_SUBJECT if is_other_subject else case.subject
            producer = _OTHER_PRODUCER if is_other_producer else case.producer_id
            earlier = Earlier(count, age_ms, first.params, subject, producer, status) if count else None
            past = _Past(earlier)
            part = self._part(sample, past, report)
            if part is not None:
                yield part, past, sample

    def _part(self, sample: SampleCase, past: _Past, report: Mapping[str, Any] | None) -> CasePart | None:
        """Return a history as a case; None if no suite can have it."""
        case = sample.case
        earlier = past.proposals
        producer = {"id": case.producer_id, "version": case.producer_version, "type": case.producer_type, "groups": [*case.producer_groups]}
        estimates = {"risk": case.risk, "cost": case.cost, "confidence": case.confidence, "priority": case.priority}
        now = datetime.fromtimestamp(case.now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts: dict[str, dict[str, Any]] = {}
        for subject in dict.fromkeys([case.subject, earlier.subject if earlier is not None else case.subject]):
            for fact in self._evidence(sample, subject):
                facts[f"{fact['key']} of {fact['subject']} from {fact.get('source', 'any')}"] = fact
            if not sample.facts:  # every proposal cites some fact about its subject
                facts[f"a note on {subject}"] = {"key": "history.note", "subject": subject, "value": True}
        counted: dict[str, dict[str, Any]] = {}  # recorded before the evidence, if both are recorded now
        for group in past.facts:
            row = {"key": group.key, "subject": group.subject, "source": group.source, "tier": group.tier, "age_ms": group.age_ms}
            counted.update((f"counted {len(counted) + number}", {**row, "value": group.value}) for number in range(group.facts))
        data: dict[str, Any] = {
            "now": now,
            "action": self._name,
            "subject": case.subject,
            "producer": producer,
            "params": dict(sample.params),
            "proposal": estimates,
            "facts": {**counted, **facts},
            "cites": [*facts],
            "expect": {"outcome": _APPROVED},
        }
        if report is not None:
            data["execution"] = dict(report)
        if earlier is not None:
            one = {"age_ms": earlier.age_ms, "subject": earlier.subject, "producer": {**producer, "id": earlier.producer}}
            one.update(action=self._name, params=dict(earlier.params), proposal=estimates)
            if earlier.status:
                one["execution"] = {"status": earlier.status}
            data["earlier"] = [one] * earlier.proposals
        try:
            return CasePart.model_validate(data)
        except ValidationError:
            return None

    def _evidence(self, sample: SampleCase, subject: str) -> Iterator[dict[str, Any]]:
        """Yield the facts of a sample about a subject, as suites write them: by the declaration of either version."""
        declared = {fact.name: (fact, action) for action in self._actions for fact in action.facts}
        case = sample.case
        proposer = Proposer(case.producer_type, case.producer_id, case.producer_version, case.producer_groups)
        for name, value in sample.facts.items():
            fact, action = declared[name]
            row = {"key": fact.key, "tier": fact.min_trust, **({"source": min(fact.sources)} if fact.sources else {})}
            if fact.subjects:
                template = action.subject_templates[fact.subjects]
                subjects = template.subjects(case.params, case.facts, subject, fact.subjects_max, proposer) or []
                values = value if isinstance(value, list) and value else self._values_of_many.get(name, [])
                # A sample has any number of values, a proposal needs one for each of its subjects.
                for number, about in enumerate(subjects if values else ()):
                    yield {**row, "value": values[min(number, len(values) - 1)], "subject": about}
                continue
            about = subject
            if fact.subject:
                about = action.subject_templates[fact.subject].subject(case.params, case.facts, subject, proposer) or subject
            yield {**row, "value": value, "subject": about}

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

    def _statuses(self) -> list[str]:
        """Return reports of the earlier proposals, and "" for none: first those that the documents name."""
        named = [one for one in _STATUSES if any(one in version.canonical_json for version in self._versions)]
        return list(dict.fromkeys([*named[:1], "", *named[1:], *_STATUSES_OF_ANY]))

    def _ages(self) -> list[int]:
        """Return ages of earlier proposals: between the windows of the counters, just now, and around each window."""
        windows = sorted({counter.window_ms or DAY_MS for counter in self._counters})
        between = [(windows[0] + windows[-1]) // 2] if len(windows) > 1 else [windows[0] // 2]
        edges = [edge for window in windows for edge in (window - 1, window)]
        return [age for age in dict.fromkeys([*between, 0, *edges, 2 * windows[-1]]) if age >= 0]


def _compared_numbers(counter: str, expressions: Iterable[ScopedExpression]) -> Iterator[object]:
    """Yield the constants that a counter is compared with."""
    for environment, expression in expressions:
        variables = {read.variable for read in environment.counter_reads.all() if read.counter == counter}
        for path, hints in collect_hints(expression.tree, environment.types).items() if variables else ():
            if path in variables:
                yield from hints.constants


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


def _earlier_decisions(run: CaseRun) -> list[tuple[Any, ...]]:
    return [(one.decision.outcome, one.decision.reason_code) if one.decision is not None else () for one in run.earlier]


def _facts(run: CaseRun) -> tuple[DerivedFact, ...]:
    return derived_facts(run.consequences.facts) if run.consequences is not None else ()


def _decision(run: CaseRun) -> CaseDecision:
    decision = run.decision
    return CaseDecision(Outcome.Name(decision.outcome).removeprefix("OUTCOME_"), decision.reason_code, decision.rule_id)

"""Generated histories that two versions of a rule set treat differently: a diff of counters and derivations.

Generated cases of `diff` give each counter some number, whatever it counts, and know no executions. A history has both: some earlier
proposals of an action with their reports, the time since, a proposal, and the report of its execution. The real core runs it under each
version (`case_bus`). Histories are sought for actions that read a counter, or have a derivation, that was edited. They are tried from the
plainest on, at most PROPOSALS_MAX proposals for each action: an edit without a history may still change decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from gavel.v1.decision_pb2 import Outcome
from gavel.v1.execution_pb2 import ExecutionStatus
from pydantic import ValidationError

from gavel_rules.authoring.derived_facts import DerivedFact, derived_facts, facts_beyond
from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.samples.budget import Budget
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.cases import CaseGenerator, generate_cases
from gavel_rules.authoring.samples.hints import Hints, collect_hints
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.case_bus import CaseBus, CaseBusError, CaseRun
from gavel_rules.authoring.suites.models import CasePart
from gavel_rules.authoring.suites.runner import resolve_cases
from gavel_rules.authoring.suites.suite import Suite, SuiteCase
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.cel.vocabulary import COUNTER_READS
from gavel_rules.language.derivation_rules import DerivationRule
from gavel_rules.language.document.diagnostics import DocumentError, Messages
from gavel_rules.language.document.source import Source
from gavel_rules.language.engines.case import Proposer
from gavel_rules.language.report_expressions import STATUS_PREFIX
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet

PROPOSALS_MAX: Final = 300  # of the histories of one action, under each version
COUNT_MAX: Final = 12  # earlier proposals of a history
HISTORIES_SHOWN_MAX: Final = 4  # of one action
WORK_MAX: Final = 200_000  # steps of a Budget, to generate the proposals of one action
SAMPLES_MAX: Final = 40
EARLIER_SAMPLES_MAX: Final = 6
AMOUNT_MAX: Final = 1e9
DAY_MS: Final = 86_400_000

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


class HistoryDiff(NamedTuple):
    """The histories that two versions treat differently, and the edited counters and derivations of which no history shows the edit.

    A counter that nothing reads is neither.
    """

    changes: tuple[HistoryChange, ...]
    not_analysed: tuple[str, ...]  # "counters.NAME" or "derivations.ID"


def compare_histories(old: CompiledRuleSet, new: CompiledRuleSet, seeds: Sequence[Seed] = ()) -> HistoryDiff:
    """Return the histories that two versions treat differently. `seeds` are known cases of either."""
    counters = {name for name, counter in old.counters.items() if name in new.counters and new.counters[name].digest != counter.digest}
    derivations = {rule.id for rule in _edited_derivations(old, new)}
    if not counters and not derivations:
        return HistoryDiff((), ())
    changes: list[HistoryChange] = []
    edits: set[str] = set()
    shown: set[str] = set()
    buses = _open_buses(old, new)
    for name in sorted({*old.actions} & {*new.actions}):
        action = _Action(name, old, new, counters, derivations, seeds)
        edits |= action.edits
        for change in action.changes(buses) if action.edits and buses is not None else ():
            changes.append(change)
            shown |= action.edits_shown_by(change)
    return HistoryDiff(tuple(changes), tuple(sorted(edits - shown)))


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
        self._counters = [version.counters[one] for one in sorted(needed) for version in (old, new) if one in version.counters]
        self._values_of_many: dict[str, list[object]] = {}  # of a fact of many subjects, by name
        self.edits = {f"counters.{one}" for one in read & counters} | {f"derivations.{rule.id}" for rule in self._derivations}

    def changes(self, buses: tuple[CaseBus, CaseBus]) -> Iterator[HistoryChange]:
        """Yield histories that the versions treat differently: one for each pair of decisions and each fact."""
        seen: set[object] = set()
        left = PROPOSALS_MAX
        shown: set[str] = set()
        for part, earlier, sample in self._histories(self._samples(buses)):
            left -= len(part.earlier) + 1
            if left < 0 or len(seen) >= HISTORIES_SHOWN_MAX or shown == self.edits:
                return
            before, after = self._runs(buses, part)
            if before is None or after is None or _earlier_decisions(before) != _earlier_decisions(after):
                continue
            change = self._change(part, earlier, sample, before, after)
            keys = sorted({fact.key for fact in (*change.derived_before, *change.derived_after)})
            key = (change.before, change.after, *keys)
            if (change.before != change.after or keys) and key not in seen:
                seen.add(key)
                shown |= self.edits_shown_by(change)
                yield change

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

    def _change(self, part: CasePart, earlier: Earlier | None, sample: SampleCase, before: CaseRun, after: CaseRun) -> HistoryChange:
        # Where one version approves nothing, the decisions tell why it derives nothing.
        are_carried_out = before.consequences is not None and after.consequences is not None
        facts_before, facts_after = (_facts(before), _facts(after)) if are_carried_out else ((), ())
        return HistoryChange(
            self._name,
            earlier,
            part.subject,
            part.producer.id,
            part.params,
            sample.facts,
            part.execution.model_dump(exclude_defaults=True) if part.execution is not None and are_carried_out else None,
            _decision(before),
            _decision(after),
            facts_beyond(facts_before, facts_after),
            facts_beyond(facts_after, facts_before),
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
                samples.setdefault(repr((sample.params, sample.facts, sample.case.now_ms)), sample)
        ranks: dict[int, tuple[bool, float]] = {}
        for index, sample in enumerate(samples.values()):
            part = self._part(sample, None, None)
            runs = self._runs(buses, part) if part is not None else ()
            are_approved = bool(runs) and all(run is not None and _decision(run).outcome == _APPROVED for run in runs)
            ranks[index] = (not are_approved, -_magnitude(sample.params))
        ordered = list(samples.values())
        order = sorted(ranks, key=ranks.__getitem__)
        smallest = [index for index in order if not ranks[index][0]][-1:]  # of those approved: many of it fit into a budget
        return [ordered[index] for index in dict.fromkeys([*order[:1], *smallest, *order])]

    def _histories(self, samples: Sequence[SampleCase]) -> Iterator[tuple[CasePart, Earlier | None, SampleCase]]:
        """Yield histories, the plainest first: those whose parts are early among the options of each part.

        The earlier proposals are like the last one, or like one of the next samples.
        """
        reports: list[Mapping[str, Any] | None] = [*self._reports()] or [None]
        counts: Sequence[int] = self._counts() if self._counters else [0]
        ages: Sequence[int] = self._ages() if self._counters else [0]
        statuses = self._statuses() if self._counters else [""]
        others = [(False, False), (True, False), (False, True)] if self._counters else [(False, False)]
        steps = range(min(len(samples), EARLIER_SAMPLES_MAX) if self._counters else 1)
        options: tuple[Sequence[Any], ...] = (range(len(samples)), reports, counts, ages, statuses, others, steps)
        for indexes in _by_sum([len(one) for one in options]):
            number, report, count, age_ms, status, (is_other_subject, is_other_producer), step = (
                one[index] for one, index in zip(options, indexes, strict=True)
            )
            sample, first = samples[number], samples[(number + step) % len(samples)]
            case = sample.case
            subject = case.subject + _OTHER_SUBJECT if is_other_subject else case.subject
            producer = _OTHER_PRODUCER if is_other_producer else case.producer_id
            earlier = Earlier(count, age_ms, first.params, subject, producer, status) if count else None
            part = self._part(sample, earlier, report)
            if part is not None:
                yield part, earlier, sample

    def _part(self, sample: SampleCase, earlier: Earlier | None, report: Mapping[str, Any] | None) -> CasePart | None:
        """Return a history as a case; None if no suite can have it."""
        case = sample.case
        producer = {"id": case.producer_id, "version": case.producer_version, "type": case.producer_type, "groups": [*case.producer_groups]}
        estimates = {"risk": case.risk, "cost": case.cost, "confidence": case.confidence, "priority": case.priority}
        now = datetime.fromtimestamp(case.now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        facts: dict[str, dict[str, Any]] = {}
        for subject in dict.fromkeys([case.subject, earlier.subject if earlier is not None else case.subject]):
            for fact in self._evidence(sample, subject):
                facts[f"{fact['key']} of {fact['subject']} from {fact.get('source', 'any')}"] = fact
            if not sample.facts:  # every proposal cites some fact about its subject
                facts[f"a note on {subject}"] = {"key": "history.note", "subject": subject, "value": True}
        data: dict[str, Any] = {
            "now": now,
            "action": self._name,
            "subject": case.subject,
            "producer": producer,
            "params": dict(sample.params),
            "proposal": estimates,
            "facts": facts,
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

    def _reports(self) -> list[Mapping[str, Any]]:
        """Return reports from which a derivation that was edited, or that reads an edited counter, derives a fact."""
        reports: list[Mapping[str, Any]] = []
        for rule in self._deriving:
            status = ExecutionStatus.Name(rule.status).removeprefix(STATUS_PREFIX)
            hints: dict[str, Hints] = {}
            for scoped in (rule.value_expression, rule.subject_expression):
                if scoped is not None:
                    hints.update(collect_hints(scoped.expression.tree, scoped.environment.types))
            for result in _results(hints):
                report = {"status": status, **({"result": result} if result else {})}
                if report not in reports:
                    reports.append(report)
        return reports


_RESULT: Final = "execution.result."
_PLAIN_VALUES: Final[tuple[object, ...]] = (1.5, "text", True)


def _results(hints: Mapping[str, Hints]) -> Iterator[dict[str, Any]]:
    """Yield results of an execution with the fields that an expression reads; their types are not known."""
    fields = [path.removeprefix(_RESULT) for path in hints if path.startswith(_RESULT)]
    names = [name for name in fields if "[]" not in name and not any(other.startswith(f"{name}.") for other in fields)]
    for plain in _PLAIN_VALUES:
        result: dict[str, Any] = {}
        for name in names:
            of_field: tuple[object, ...] = hints[f"{_RESULT}{name}"].constants
            _put(result, name.split("."), next(iter(of_field), plain))
        yield result
        if not names:
            return
        if plain == _PLAIN_VALUES[0]:
            yield {}  # a report that lacks them


def _by_sum(sizes: Sequence[int], total: int | None = None) -> Iterator[tuple[int, ...]]:
    """Yield the indexes of lists of these sizes, by rising sum; with `total`, those of this sum."""
    if total is None:
        for each in range(sum(sizes) - len(sizes) + 1):
            yield from _by_sum(sizes, each)
    elif not sizes:
        if not total:
            yield ()
    else:
        for first in range(min(total, sizes[0] - 1) + 1):
            for rest in _by_sum(sizes[1:], total - first):
                yield (first, *rest)


def _magnitude(value: object) -> float:
    """Return the sum of the numbers in params; those beyond any amount count as 0."""
    if isinstance(value, Mapping):
        return sum(map(_magnitude, value.values()))
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= AMOUNT_MAX:
        return float(value)
    return 0.0


def _put(result: dict[str, Any], steps: Sequence[str], value: object) -> None:
    for step in steps[:-1]:
        result = result.setdefault(step, {})
    result[steps[-1]] = value


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

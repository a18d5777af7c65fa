"""Generated histories that two versions of a rule set treat differently: a diff of counters and derivations.

Generated cases of `diff` give each counter some number, whatever it counts, and know no executions. A history has both: some earlier
proposals of an action with their reports, or some earlier facts, the time since, a proposal, and the report of its execution. The real
core runs it under each version (`version_runs`). Histories are sought for actions that read a counter, or have a derivation, that was
edited. They are tried from the plainest on, within a number of proposals for each action: an edit without a history may still change
decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from gavel_rules.authoring.derived_facts import DerivedFact, facts_beyond
from gavel_rules.authoring.diff import CaseDecision
from gavel_rules.authoring.samples.builder import SampleCase
from gavel_rules.authoring.samples.seeds import Seed
from gavel_rules.authoring.suites.case_bus import CaseBusError
from gavel_rules.authoring.suites.histories.count_comparison import CountComparison
from gavel_rules.authoring.suites.histories.earlier_facts import EarlierFacts
from gavel_rules.authoring.suites.histories.earlier_proposals import EarlierProposals
from gavel_rules.authoring.suites.histories.edits import ActionEdits, find_edits
from gavel_rules.authoring.suites.histories.fact_histories import FactHistories
from gavel_rules.authoring.suites.histories.history_cases import Earlier, History, HistoryCases, Past
from gavel_rules.authoring.suites.histories.proposal_histories import proposal_histories
from gavel_rules.authoring.suites.histories.proposal_samples import ProposalSamples
from gavel_rules.authoring.suites.histories.sample_reports import sample_reports
from gavel_rules.authoring.suites.histories.thresholds import Thresholds
from gavel_rules.authoring.suites.histories.version_runs import Runs, VersionBuses, decision_of, earlier_decisions, facts_of
from gavel_rules.language.cel.checker import ScopedExpression
from gavel_rules.language.counters.counter import VALUE_SOURCES
from gavel_rules.language.rule_set import CompiledRuleSet

PROPOSALS_MAX: Final = 600  # of the histories of one action, under each version
HISTORIES_MIN: Final = 40  # of one action, however many proposals they need
HISTORIES_SHOWN_MAX: Final = 4  # of one action and kind of history

_REFUSED: Final = "the core refuses to put one of the versions in force"


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

    @property
    def fact_keys(self) -> list[str]:
        """The keys of the facts that only one version derives, sorted."""
        return sorted({fact.key for fact in (*self.derived_before, *self.derived_after)})


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
    edits = find_edits(old, new)
    of_actions = {name: ActionEdits(name, old, new, edits) for name in sorted({*old.actions} & {*new.actions})}
    edited = {name: of_action for name, of_action in of_actions.items() if of_action.names}
    if not edited:
        return HistoryDiff((), ())
    try:
        buses = VersionBuses(old, new)
    except CaseBusError:
        names = {name for of_action in edited.values() for name in of_action.names}
        return HistoryDiff((), tuple(NotAnalysed(name, _REFUSED) for name in sorted(names)))
    changes: list[HistoryChange] = []
    reasons: dict[str, str] = {}
    shown: set[str] = set()
    for name, of_action in edited.items():
        search = _Search(name, old, new, of_action, buses, seeds)
        changes.extend(search.changes())
        shown |= search.shown
        reasons.update((edit, search.reason(edit)) for edit in of_action.names)
    return HistoryDiff(tuple(changes), tuple(NotAnalysed(edit, reasons[edit]) for edit in sorted(reasons) if edit not in shown))


class _Search:
    """The search for histories of one action. `shown` are the edits that a history has shown so far."""

    def __init__(
        self, name: str, old: CompiledRuleSet, new: CompiledRuleSet, edits: ActionEdits, buses: VersionBuses, seeds: Sequence[Seed]
    ) -> None:
        self._name = name
        self._edits = edits
        self._buses = buses
        actions = (old.actions[name], new.actions[name])
        expressions = [ScopedExpression(action.environment, condition) for action in actions for condition in action.conditions]
        thresholds = Thresholds([*expressions, *(rule.value_expression for rule in edits.deriving)])
        of_proposals = {one: pair for one, pair in edits.telling.items() if any(counter.source not in VALUE_SOURCES for counter in pair)}
        documents = [old.canonical_json, new.canonical_json]
        is_subject = all(action.conflict_key_is_subject for action in actions)
        self._earlier = EarlierProposals(of_proposals, edits.deriving, documents, thresholds, conflict_key_is_subject=is_subject)
        self._facts = FactHistories(actions, edits, thresholds)
        comparison = CountComparison(name, edits.counters.values(), self._earlier.reports)
        self._samples = ProposalSamples(actions, seeds, self._earlier.amounts, edits.counters.values(), comparison)
        self._earlier.reports = comparison.rank_reports(self._samples)
        self._cases = HistoryCases(actions, self._samples.values_of_many)
        self.shown: set[str] = set()

    def changes(self) -> Iterator[HistoryChange]:
        """Yield histories that the versions treat differently: one for each pair of decisions and each fact, and one for each edit."""
        seen: set[object] = set()
        if not self._edits.visible:
            return
        for edit, histories in self._histories():
            proposals_left = (
                PROPOSALS_MAX // len(self._facts.names) if edit else max(PROPOSALS_MAX, HISTORIES_MIN * max(self._earlier.counts))
            )
            found = 0
            for history in histories:
                proposals_left -= len(history.part.earlier) + 1
                if proposals_left < 0 or found >= HISTORIES_SHOWN_MAX or edit in self.shown or self.shown >= self._edits.visible:
                    break
                runs = self._buses.run(history.part)
                change = self._change(history, runs) if runs is not None else None
                if change is None:
                    continue
                edits = self._edits_shown_by(change, history)
                if not edits and self._edits.has_others:
                    continue  # the cases of `diff` show these
                key = (change.before, change.after, *change.fact_keys)
                if key not in seen or not edits <= self.shown:
                    seen.add(key)
                    found += 1
                    self.shown |= edits
                    yield change

    def reason(self, edit: str) -> str:
        """Return why no history shows an edit. Call it when `changes` has ended."""
        root, _, name = edit.partition(".")
        versions = self._edits.counters.get(name) if root == "counters" else None
        if versions is None:
            return "no generated history is treated differently"
        if not versions.counts_differ:
            return "only its limits differ, which no generated history reaches"
        before, after = versions
        if not versions.counts_facts and self._name not in (before.actions ^ after.actions or before.actions):
            return "it counts other actions, and the earlier proposals of a history are of the action that reads it"
        return self._facts.reason(name) or self._earlier.reason(name) or "no generated history is treated differently"

    def _histories(self) -> Iterator[tuple[str, Iterator[History]]]:
        """Yield histories, with the edit for which they are sought, "" for all edits."""
        samples = self._samples.rank(self._is_approved(sample) for sample in self._samples)
        reports: list[Mapping[str, Any] | None] = [*sample_reports(self._edits.deriving)] or [None]
        for name in self._facts.names:
            yield f"counters.{name}", self._facts.histories(name, self._cases, samples, reports)
        if self._earlier.counters or self._edits.deriving:
            alone: list[tuple[SampleCase, tuple[EarlierFacts, ...]]] = [(sample, ()) for sample in samples]
            yield "", proposal_histories(self._earlier, self._cases, alone, reports)
            # With facts for the other counters of a rule.
            names = sorted(self._earlier.counters.keys() & self._edits.counters.keys())
            both = [(sample, facts) for sample in samples for name in names for facts in self._facts.companions(name, sample)]
            both.sort(key=lambda one: not self._is_approved(*one))
            yield "", proposal_histories(self._earlier, self._cases, both, reports)

    def _is_approved(self, sample: SampleCase, facts: tuple[EarlierFacts, ...] = ()) -> bool:
        history = self._cases.history(sample, Past(None, facts), None)
        return history is not None and self._buses.approve(history.part)

    def _edits_shown_by(self, change: HistoryChange, history: History) -> set[str]:
        runs = self._buses.run(history.part, explain=True)
        if runs is None:
            return set()
        return self._edits.shown_by(*runs, are_decisions_alike=change.before == change.after, fact_keys=change.fact_keys)

    def _change(self, history: History, runs: Runs) -> HistoryChange | None:
        """Return the difference between runs of a history; None if there is none, or if the versions already differ in its past."""
        part, past, sample = history
        if earlier_decisions(runs.before) != earlier_decisions(runs.after):
            return None
        # Where one version approves nothing, the decisions tell why it derives nothing.
        are_carried_out = all(run.consequences is not None for run in runs)
        facts_before, facts_after = (facts_of(run) if are_carried_out else () for run in runs)
        change = HistoryChange(
            self._name,
            past.proposals,
            part.subject,
            part.producer.id,
            part.params,
            sample.facts,
            part.execution.model_dump(exclude_defaults=True) if part.execution is not None and are_carried_out else None,
            decision_of(runs.before),
            decision_of(runs.after),
            facts_beyond(facts_before, facts_after),
            facts_beyond(facts_after, facts_before),
            past.facts,
            part.now,
        )
        return change if change.before != change.after or change.fact_keys else None

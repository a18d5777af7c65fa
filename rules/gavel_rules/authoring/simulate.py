"""Simulation of a candidate rule set: a log decided again with the candidate in force (constitution §6.4).

Each recorded proposal is decided again at its recorded time, on the state that the recorded decisions left. The consequences of a
changed decision are not simulated. Where the decision stays an approval, the facts are derived again from each recorded report, with what
the candidate's counters give after it. Decisions of people stay as recorded. The log is not verified here; `replay` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gavel.v1 import decision_pb2, execution_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.arbitration import contest, shadow
from gavel_rules.arbitration.evaluation import evaluator
from gavel_rules.arbitration.pipeline import arbitrate
from gavel_rules.arbitration.shadow import same_verdict
from gavel_rules.authoring.derived_facts import DerivedFact, derived_facts, facts_beyond
from gavel_rules.derivation import applicable_rules, derive
from gavel_rules.events.citation import CitedEvent, cited_event
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.events.timestamps import milliseconds, set_timestamp
from gavel_rules.execution.reports import read_keys
from gavel_rules.language.rule_set import CompiledAction, CompiledRuleSet
from gavel_rules.language.shared_action_settings import Disagreement, find_disagreements, format_disagreements
from gavel_rules.replay import decode
from gavel_rules.state.active_actions import actions_by_type
from gavel_rules.state.state import State
from gavel_rules.state.transitions.counters import open_counters

# Code of the warning on a simulated decision for which the candidate could not have been in force.
DISAGREES: Final = "RULE_SETS_DISAGREE"
# The records of what people decide. A verdict on a review or a revocation says what a person thought of a recorded decision; nobody
# knows what the person would have thought of another one.
_HUMAN_DECISIONS: Final = frozenset(("review_resolved", "revocation_requested"))


class ChangedDecision(NamedTuple):
    """A recorded decision that the candidate would have made differently."""

    sequence_number: int
    recorded: Decision
    simulated: Decision


class ChangedFacts(NamedTuple):
    """A recorded report from which the candidate would have derived other facts: those on either side that the other lacks, sorted."""

    sequence_number: int  # of the report
    decision: Decision  # as recorded
    recorded: tuple[DerivedFact, ...]
    simulated: tuple[DerivedFact, ...]


class Simulation:
    """Decides the proposals of a log under a candidate rule set. Feed every record from number 1 in order.

    If the candidate disagrees with a rule set in force about an action that both declare, it could not have been in force. Its decision on
    such a proposal is then EVALUATION_ERROR, as for a shadow, with the disagreement as a warning.

    `decisions` counts the first decisions so far, `replaced` those made while a version of its rule set was in force, `reports` the
    reports from which facts were derived again, `human_decisions` the verdicts on reviews and the revocations, which stay as recorded.
    """

    def __init__(self, bus: str, candidate: CompiledRuleSet) -> None:
        self.state = State(bus)
        # The candidate's counters count as if they had always been there.
        open_counters(self.state.store, candidate.counters.values(), is_pinned=True)
        self._candidate = candidate
        self._cited_events: dict[int, CitedEvent] = {}  # by sequence number
        self._simulated: dict[str, Decision] = {}  # by proposal id
        self._recorded_actions: Mapping[str, tuple[CompiledAction, ...]] | None = None  # the state's, when `_actions` was built
        self._actions: Mapping[str, tuple[CompiledAction, ...]] = {}  # in force with the candidate, by action type
        self._disagreements: dict[str, list[Disagreement]] = {}  # by action type
        self._approvals: dict[str, Envelope] = {}  # under the candidate, by decision id; only those that may derive other facts
        self.decisions = 0
        self.replaced = 0
        self.reports = 0
        self.human_decisions = 0

    def feed(self, sequence_number: int, envelope_bytes: bytes) -> ChangedDecision | ChangedFacts | None:
        """Take the next record; return the change if the candidate would have made another decision or derived other facts."""
        recorded = decode(sequence_number, envelope_bytes)
        change: ChangedDecision | ChangedFacts | None = None
        live = None
        match recorded.WhichOneof("payload"):
            case "proposal" if not recorded.proposal.HasField("contest"):
                self._simulate(recorded)
            case "decision" if not recorded.decision.previous_decision_id:
                change = self._compare(recorded)
            case "execution" if recorded.execution.status != execution_pb2.EXECUTION_STATUS_STARTED:
                live = self.state.decisions.get(recorded.execution.decision_id)
            case "fact":
                self.human_decisions += recorded.fact.WhichOneof("system") in _HUMAN_DECISIONS
        self.state.apply(recorded).pack(envelope_bytes)
        self.state.commit()
        if live is not None and live.decision_id in self._approvals:
            change = self._compare_facts(recorded, live.decision)
        self._forget_ended(recorded)
        citation = cited_event(recorded)
        if citation.keys:
            self._cited_events[sequence_number] = citation
        return change

    def _compare(self, event: Envelope) -> ChangedDecision | None:
        """Return the change of a recorded first decision; None if the candidate decides the same."""
        self.decisions += 1
        self.replaced += self._candidate.policy_id in self.state.active_rule_sets
        proposal_id = event.decision.proposal_id
        if proposal_id not in self._simulated:
            self._simulate_contest(event)
        simulated = self._simulated.pop(proposal_id)
        proposal = self.state.open_proposals[proposal_id].envelope
        if proposal.proposal.HasField("contest"):
            actions = self._actions.get(simulated.action_type, ())
            contest.settle(simulated, self.state, proposal, milliseconds(event.recorded_at), actions)
        self._keep_approval(event, simulated)
        if same_verdict(event.decision, simulated):
            return None
        return ChangedDecision(event.sequence_number, event.decision, simulated)

    def _keep_approval(self, event: Envelope, simulated: Decision) -> None:
        """Keep an approval that stays one under the candidate, if its executions may derive other facts."""
        approved = decision_pb2.OUTCOME_APPROVED
        if event.decision.outcome != approved or simulated.outcome != approved:
            return
        rule_sets = [self.state.rule_set_of(event.decision), self._rule_set_of(simulated)]
        if event.decision.rule_set_digest != simulated.rule_set_digest and any(one is not None and one.derivations for one in rule_sets):
            approval = Envelope()
            approval.CopyFrom(event)
            approval.decision.CopyFrom(simulated)
            approval.decision.decision_id = event.decision.decision_id
            approval.decision.proposal_id = event.decision.proposal_id
            self._approvals[event.event_id] = approval

    def _forget_ended(self, event: Envelope) -> None:
        """Forget an approval that nobody can report on any more."""
        decision_id = event.execution.decision_id or event.decision.previous_decision_id or event.fact.decision_id
        if decision_id in self._approvals and decision_id not in self.state.decisions:
            del self._approvals[decision_id]

    def _compare_facts(self, report: Envelope, decision: Envelope) -> ChangedFacts | None:
        """Return how the facts of a report change under the candidate; None if they stay. The state has the report."""
        self.reports += 1
        approval = self._approvals[decision.event_id]
        rule_set = self._rule_set_of(approval.decision)
        simulated_report = Envelope()
        simulated_report.CopyFrom(report)
        simulated_report.execution.ClearField("counters")
        keys = [key for rule in applicable_rules(report, approval, rule_set) for key in rule.counter_keys(report, approval)]
        readings = read_keys(self.state, approval.decision.policy_id, keys, milliseconds(report.recorded_at))
        simulated_report.execution.counters.extend(readings)
        before = derived_facts(derive(report, decision, self.state.rule_set_of(decision.decision)))
        after = derived_facts(derive(simulated_report, approval, rule_set))
        recorded, simulated = facts_beyond(before, after), facts_beyond(after, before)
        if not recorded and not simulated:
            return None
        return ChangedFacts(report.sequence_number, decision.decision, recorded, simulated)

    def _rule_set_of(self, decision: Decision) -> CompiledRuleSet | None:
        """Return the rule set of a simulated decision."""
        if decision.rule_set_digest == self._candidate.digest:
            return self._candidate
        return self.state.rule_set_of(decision)

    def _simulate(self, proposal: Envelope) -> None:
        state = self.state
        self._update_actions()
        action_type = proposal.proposal.action_type
        now_ms = milliseconds(proposal.recorded_at)
        if action_type in self._disagreements:
            self._simulated[proposal.event_id] = self._failed_decision(proposal, now_ms)
            return
        evaluate = evaluator(state, proposal.sequence_number + 1, decision_pb2.ENGINE_RETE)
        actions = self._actions.get(action_type, ())
        self._simulated[proposal.event_id] = arbitrate(state, ProposalView(proposal), self._cited_events, now_ms, evaluate, actions)

    def _simulate_contest(self, event: Envelope) -> None:
        """Rank the proposals of the contest that closes with this decision, under the candidate rule set."""
        state = self.state
        open_contest = state.contest_of(event.decision.proposal_id)
        if open_contest is None:
            return
        self._update_actions()
        proposals = contest.candidates(state, open_contest)
        now_ms = milliseconds(event.recorded_at)
        if open_contest.action_type in self._disagreements:
            self._simulated.update((proposal.event_id, self._failed_decision(proposal, now_ms)) for proposal in proposals)
            return
        actions = self._actions.get(open_contest.action_type, ())
        evaluate = evaluator(state, event.sequence_number, decision_pb2.ENGINE_RETE)
        for proposal, decision in contest.rank(state, proposals, now_ms, evaluate, actions, (), []):
            self._simulated[proposal.event_id] = decision

    def _update_actions(self) -> None:
        """Add the candidate to the rule sets in force at this point of the log, in place of another version of it."""
        if self._recorded_actions is self.state.active_actions:
            return
        self._recorded_actions = self.state.active_actions
        in_force = {policy_id: active.rule_set for policy_id, active in self.state.active_rule_sets.items()}
        self._disagreements = {}
        compares_counters = self.state.semantics.compares_counters
        for disagreement in find_disagreements(self._candidate, in_force.values(), compares_counters=compares_counters):
            self._disagreements.setdefault(disagreement.action_type, []).append(disagreement)
        self._actions = actions_by_type({**in_force, self._candidate.policy_id: self._candidate}.values())

    def _failed_decision(self, proposal: Envelope, now_ms: int) -> Decision:
        """Return the simulated decision for an action on which the candidate disagrees with the rule sets in force."""
        decision = shadow.failed_decision(self.state)
        decision.action_type = proposal.proposal.action_type
        decision.params.CopyFrom(proposal.proposal.params)
        set_timestamp(decision.evaluated_at, now_ms)
        decision.warnings.add(code=DISAGREES, message=format_disagreements(self._disagreements[proposal.proposal.action_type]))
        return decision

"""What a candidate rule set would have changed in the past: a log decided again with it in force (seeds 002 §6.4).

Each proposal is decided once more as it was, on the state that the recorded decisions have made, at their times. What a changed
decision would have led to is not played out. The log is taken as it is: whether it is intact, `replay` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from gavel.v1 import decision_pb2
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import contest, shadow
from gavel_rules.arbitration import arbitrate
from gavel_rules.decider import judge
from gavel_rules.events import milliseconds, set_timestamp
from gavel_rules.evidence import Cited, cited
from gavel_rules.language.agreement import Disagreement, described, disagreements
from gavel_rules.language.ruleset import CompiledAction, CompiledRuleSet
from gavel_rules.projection import State
from gavel_rules.proposed import Proposed
from gavel_rules.replay import decode
from gavel_rules.shadow import same_verdict
from gavel_rules.tables import governing_actions

# The warning of a simulated decision that says why the candidate could not have been in force.
DISAGREES: Final = "RULE_SETS_DISAGREE"


class ChangedDecision(NamedTuple):
    """A past decision that a candidate rule set would have made otherwise."""

    sequence_number: int
    recorded: Decision
    simulated: Decision


class Impact:
    """What past proposals would have been decided under a candidate rule set, everything else exactly as it was.

    Where it disagrees with a rule set then in force about an action that they share, it could not have been: its decision on such
    a proposal is the EVALUATION_ERROR of a shadow, with the disagreement as warning.
    """

    def __init__(self, bus: str, candidate: CompiledRuleSet) -> None:
        self.state = State(bus)
        self._candidate = candidate
        self._cited: dict[int, Cited] = {}
        self._simulated: dict[str, Decision] = {}
        self._in_force: Mapping[str, tuple[CompiledAction, ...]] | None = None  # of the state, when the candidate was put beside it
        self._governing: Mapping[str, tuple[CompiledAction, ...]] = {}
        self._disagreements: dict[str, list[Disagreement]] = {}  # by action type
        self.decisions = 0
        self.replaced = 0  # of these: while a version of the same rule set was in force

    def feed(self, sequence_number: int, envelope_bytes: bytes) -> ChangedDecision | None:
        """Take the next record; return a first decision that would have come out otherwise."""
        recorded = decode(sequence_number, envelope_bytes)
        changed = None
        match recorded.WhichOneof("payload"):
            case "proposal" if not recorded.proposal.HasField("contest"):
                self._simulate(recorded)
            case "decision" if not recorded.decision.previous_decision_id:
                changed = self._difference(recorded)
        self.state.apply(recorded).pack(envelope_bytes)
        self.state.commit()
        citation = cited(recorded)
        if citation.keys:
            self._cited[sequence_number] = citation
        return changed

    def _simulate(self, proposal: Envelope) -> None:
        state = self.state
        self._put_in_force()
        action_type = proposal.proposal.action_type
        now_ms = milliseconds(proposal.recorded_at)
        if action_type in self._disagreements:
            self._simulated[proposal.event_id] = self._impossible(proposal, now_ms)
            return
        asking = judge(state, proposal.sequence_number + 1, decision_pb2.ENGINE_RETE)
        governing = self._governing.get(action_type, ())
        self._simulated[proposal.event_id] = arbitrate(state, Proposed(proposal), self._cited, now_ms, asking, governing)

    def _simulate_contest(self, recorded: Envelope) -> None:
        """A contest closes with this decision: let its candidates compete under the candidate rule set."""
        state = self.state
        waited_for = state.contest_of(recorded.decision.proposal_id)
        if waited_for is None:
            return
        self._put_in_force()
        proposals = contest.candidates(state, waited_for)
        now_ms = milliseconds(recorded.recorded_at)
        if waited_for.action_type in self._disagreements:
            self._simulated.update((proposal.event_id, self._impossible(proposal, now_ms)) for proposal in proposals)
            return
        governing = self._governing.get(waited_for.action_type, ())
        asking = judge(state, recorded.sequence_number, decision_pb2.ENGINE_RETE)
        for proposal, decision in contest.rank(state, proposals, now_ms, asking, governing, (), []):
            self._simulated[proposal.event_id] = decision

    def _put_in_force(self) -> None:
        """Put the candidate beside what is in force at this point of the log, or in place of the version of its rule set."""
        if self._in_force is self.state.governing:
            return
        self._in_force = self.state.governing
        in_force = {policy_id: active.rule_set for policy_id, active in self.state.active.items()}
        self._disagreements = {}
        for found in disagreements(self._candidate, in_force.values()):
            self._disagreements.setdefault(found.action_type, []).append(found)
        self._governing = governing_actions({**in_force, self._candidate.policy_id: self._candidate}.values())

    def _impossible(self, proposal: Envelope, now_ms: int) -> Decision:
        """Return what stands for a decision that the candidate could have had no say in: it disagrees about the action."""
        decision = shadow.failed()
        decision.action_type = proposal.proposal.action_type
        decision.params.CopyFrom(proposal.proposal.params)
        set_timestamp(decision.evaluated_at, now_ms)
        decision.warnings.add(code=DISAGREES, message=described(self._disagreements[proposal.proposal.action_type]))
        return decision

    def _difference(self, recorded: Envelope) -> ChangedDecision | None:
        self.decisions += 1
        self.replaced += self._candidate.policy_id in self.state.active
        proposal_id = recorded.decision.proposal_id
        if proposal_id not in self._simulated:
            self._simulate_contest(recorded)
        simulated = self._simulated.pop(proposal_id)
        proposal = self.state.open_proposals[proposal_id].envelope
        if proposal.proposal.HasField("contest"):
            governing = self._governing.get(simulated.action_type, ())
            contest.settle(simulated, self.state, proposal, milliseconds(recorded.recorded_at), governing)
        if same_verdict(recorded.decision, simulated):
            return None
        return ChangedDecision(recorded.sequence_number, recorded.decision, simulated)

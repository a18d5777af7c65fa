"""Recording of first decisions, with the diagnostics that accompany them.

Every first decision is recorded here, whether it is made at the submission or when a contest closes. Its id and its diagnostics are
therefore the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, FactCollection, ShadowDifference
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reason_codes
from gavel_rules.arbitration import shadow
from gavel_rules.events.ids import derived_event_id
from gavel_rules.events.kinds import OUTCOME_APPROVED
from gavel_rules.events.recorded_event import RecordedEvent
from gavel_rules.recorder import Recorder

# The kind from which the id of a first decision is derived.
_KIND: Final = "decision"
_NEEDS_HUMAN_REVIEW: Final = AgentDiagnostic(kind="NeedsHumanReview")
_NO_FEASIBLE_PROPOSAL: Final = AgentDiagnostic(kind="NoFeasibleProposal")


def record_first(recorder: Recorder, envelope: Envelope, proposal: RecordedEvent, differences: Iterable[ShadowDifference] = ()) -> Envelope:
    """Record a proposal's first decision and its diagnostics; return the decision's envelope.

    `envelope` holds the decision without its ids. `differences` are those of shadows.
    """
    decision = envelope.decision
    proposal_id = proposal.event_id
    decision_id = derived_event_id(proposal_id, proposal.sequence_number, _KIND)
    decision.decision_id = decision_id
    decision.proposal_id = proposal_id
    decision.state_version = recorder.state.head
    outcome = decision.outcome
    event = recorder.record_decision_as(envelope, decision_id, outcome, proposal_id, proposal.trace_id, proposal.subject)
    if outcome != OUTCOME_APPROVED:
        _record_refusal_diagnostics(recorder, event, decision)
    for ordinal, difference in enumerate(differences):
        difference.decision_id = decision_id
        _record_diagnostic(recorder, event, AgentDiagnostic(kind=shadow.KIND, shadow_difference=difference), shadow.KIND, ordinal)
    return envelope


def request_facts(recorder: Recorder, event: RecordedEvent) -> None:
    """Record that a decision lacks trusted evidence, for sensors and adapters to collect it (constitution §4.8)."""
    requirements = event.envelope.decision.retry_hint.fact_requirements
    collection = FactCollection(decision_id=event.event_id, fact_requirements=requirements)
    kind = "FactCollectionRequested"
    _record_diagnostic(recorder, event, AgentDiagnostic(kind=kind, fact_collection=collection), kind)


def first_decision_id(proposal: Envelope) -> str:
    """Return the id of the first decision on a recorded proposal, whether it is made yet or not."""
    return derived_event_id(proposal.event_id, proposal.sequence_number, _KIND)


def _record_refusal_diagnostics(recorder: Recorder, event: RecordedEvent, decision: Decision) -> None:
    reason_code = decision.reason_code
    if reason_code == reason_codes.REJECTION_LIMIT:
        _record_diagnostic(recorder, event, _NEEDS_HUMAN_REVIEW, "NeedsHumanReview")
    if reason_code != reason_codes.NO_FEASIBLE_PROPOSAL and decision.terminal:
        _record_diagnostic(recorder, event, _NO_FEASIBLE_PROPOSAL, "NoFeasibleProposal")
    if _lacks_tier(decision, reason_code):
        request_facts(recorder, event)


def _lacks_tier(decision: Decision, reason_code: str) -> bool:
    """Return whether a refusal is for lack of trusted evidence, even if the rejection limit turned it into a review."""
    if reason_code == reason_codes.INSUFFICIENT_EVIDENCE_TIER:
        return True
    return reason_code == reason_codes.REJECTION_LIMIT and any(
        warning.code == reason_codes.INSUFFICIENT_EVIDENCE_TIER for warning in decision.warnings
    )


def _record_diagnostic(recorder: Recorder, event: RecordedEvent, diagnostic: AgentDiagnostic, kind: str, ordinal: int = 0) -> None:
    recorder.record_diagnostic(
        diagnostic,
        event_id=derived_event_id(event.event_id, event.sequence_number, kind, ordinal),
        causation_id=event.event_id,
        trace_id=event.trace_id,
        subject=event.subject,
    )

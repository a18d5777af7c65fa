"""Recording the first decision on a proposal, with the notices that go into the log beside it.

Whatever decides a proposal, at once or when its contest closes, ends here, so that each first decision has the same shape
and calls for the same attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, FactCollection, ShadowDifference
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reasons, shadow
from gavel_rules.emission import Emission
from gavel_rules.events import OUTCOME_APPROVED, derived_event_id
from gavel_rules.made import Made

# What the id of a first decision is derived by, beside its proposal.
_KIND: Final = "decision"
_NEEDS_HUMAN_REVIEW: Final = AgentDiagnostic(kind="NeedsHumanReview")
_NO_FEASIBLE_PROPOSAL: Final = AgentDiagnostic(kind="NoFeasibleProposal")


def record_first(emission: Emission, decided: Envelope, proposal: Made, differences: Iterable[ShadowDifference] = ()) -> Envelope:
    """Record a proposal's first decision and what follows from it; return the DECISION.

    `decided` holds the decision without what its place in the log gives. `differences` say what shadows would have decided.
    """
    decision = decided.decision
    proposal_id = proposal.event_id
    decision_id = derived_event_id(proposal_id, proposal.sequence_number, _KIND)
    decision.decision_id = decision_id
    decision.proposal_id = proposal_id
    decision.state_version = emission.state.head
    outcome = decision.outcome
    made = emission.decide_as(decided, decision_id, outcome, proposal_id, proposal.trace_id, proposal.subject)
    if outcome != OUTCOME_APPROVED:
        _call_attention(emission, made, decision)
    for ordinal, difference in enumerate(differences):
        difference.decision_id = decision_id
        _notify(emission, made, AgentDiagnostic(kind=shadow.KIND, shadow_difference=difference), shadow.KIND, ordinal)
    return decided


def _call_attention(emission: Emission, decided: Made, decision: Decision) -> None:
    """Record what a refusal, or a call for a person, is noticed by."""
    reason_code = decision.reason_code
    if reason_code == reasons.REJECTION_LIMIT:
        _notify(emission, decided, _NEEDS_HUMAN_REVIEW, "NeedsHumanReview")
    if reason_code != reasons.NO_FEASIBLE_PROPOSAL and decision.terminal:
        _notify(emission, decided, _NO_FEASIBLE_PROPOSAL, "NoFeasibleProposal")
    if _lacks_tier(decision, reason_code):
        request_facts(emission, decided)


def request_facts(emission: Emission, decided: Made) -> None:
    """Record that a decision lacks trusted evidence, for sensors and adapters to act on (seeds 002 §4.8)."""
    asked = FactCollection(decision_id=decided.event_id, fact_requirements=decided.envelope.decision.retry_hint.fact_requirements)
    kind = "FactCollectionRequested"
    _notify(emission, decided, AgentDiagnostic(kind=kind, fact_collection=asked), kind)


def first_decision_id(proposal: Envelope) -> str:
    """Return the id that the first decision on a proposal of the log has, or will have."""
    return derived_event_id(proposal.event_id, proposal.sequence_number, _KIND)


def _lacks_tier(decision: Decision, reason_code: str) -> bool:
    """Whether the refusal is for lack of trusted evidence, also where the limit of rejections turned it into a review."""
    if reason_code == reasons.INSUFFICIENT_EVIDENCE_TIER:
        return True
    return reason_code == reasons.REJECTION_LIMIT and any(
        warning.code == reasons.INSUFFICIENT_EVIDENCE_TIER for warning in decision.warnings
    )


def _notify(emission: Emission, decided: Made, diagnostic: AgentDiagnostic, kind: str, ordinal: int = 0) -> None:
    emission.diagnose(
        diagnostic,
        event_id=derived_event_id(decided.event_id, decided.sequence_number, kind, ordinal),
        causation_id=decided.event_id,
        trace_id=decided.trace_id,
        subject=decided.subject,
    )

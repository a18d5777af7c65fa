"""Recording the first decision on a proposal, with the notices that go into the log beside it.

Whatever decides a proposal, at once or when its contest closes, ends here, so that each first decision has the same shape
and calls for the same attention.
"""

from __future__ import annotations

from collections.abc import Iterable

from gavel.v1.decision_pb2 import Decision
from gavel.v1.diagnostic_pb2 import AgentDiagnostic, FactCollection, ShadowDifference
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules import reasons, shadow
from gavel_rules.emission import Emission
from gavel_rules.events import derived_event_id


def record_first(emission: Emission, decided: Envelope, proposal: Envelope, differences: Iterable[ShadowDifference] = ()) -> Envelope:
    """Record a proposal's first decision and what follows from it; return the DECISION.

    `decided` holds the decision without what its place in the log gives. `differences` say what shadows would have decided.
    """
    decision = decided.decision
    recorded = _record(emission, decided, proposal)
    if decision.reason_code == reasons.REJECTION_LIMIT:
        _notify(emission, recorded, AgentDiagnostic(kind="NeedsHumanReview"))
    if decision.terminal and decision.reason_code != reasons.NO_FEASIBLE_PROPOSAL:
        _notify(emission, recorded, AgentDiagnostic(kind="NoFeasibleProposal"))
    if _lacks_tier(decision):
        request_facts(emission, recorded)
    for ordinal, difference in enumerate(differences):
        difference.decision_id = decision.decision_id
        _notify(emission, recorded, AgentDiagnostic(kind=shadow.KIND, shadow_difference=difference), ordinal)
    return recorded


def request_facts(emission: Emission, decided: Envelope) -> None:
    """Record that a decision lacks trusted evidence, for sensors and adapters to act on (seeds 002 §4.8)."""
    decision = decided.decision
    asked = FactCollection(decision_id=decision.decision_id, fact_requirements=decision.retry_hint.fact_requirements)
    _notify(emission, decided, AgentDiagnostic(kind="FactCollectionRequested", fact_collection=asked))


def first_decision_id(proposal: Envelope) -> str:
    """Return the id that the first decision on a proposal of the log has, or will have."""
    return derived_event_id(proposal.event_id, proposal.sequence_number, "decision")


def _record(emission: Emission, decided: Envelope, proposal: Envelope) -> Envelope:
    decision = decided.decision
    decision.decision_id = first_decision_id(proposal)
    decision.proposal_id = proposal.event_id
    decision.state_version = emission.state.head
    return emission.decide(decided, causation_id=proposal.event_id, trace_id=proposal.trace_id, subject=proposal.subject)


def _lacks_tier(decision: Decision) -> bool:
    """Whether the refusal is for lack of trusted evidence, also where the limit of rejections turned it into a review."""
    if decision.reason_code == reasons.INSUFFICIENT_EVIDENCE_TIER:
        return True
    return decision.reason_code == reasons.REJECTION_LIMIT and any(
        warning.code == reasons.INSUFFICIENT_EVIDENCE_TIER for warning in decision.warnings
    )


def _notify(emission: Emission, decision: Envelope, diagnostic: AgentDiagnostic, ordinal: int = 0) -> None:
    emission.diagnose(
        diagnostic,
        event_id=derived_event_id(decision.event_id, decision.sequence_number, diagnostic.kind, ordinal),
        causation_id=decision.event_id,
        trace_id=decision.trace_id,
        subject=decision.subject,
    )

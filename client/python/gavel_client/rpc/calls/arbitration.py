"""The calls of ArbitrationService: proposals, their decisions and reviews."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import ReviewVerdict
from google.protobuf.duration_pb2 import Duration

from gavel_client.envelopes import new_event_id
from gavel_client.rpc.calls.call import UnaryCall, unary_call, with_event_id
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS, WAIT_TIMEOUT_MS, WRITE_TIMEOUT_MS


def submit_proposal(
    envelope: Envelope, *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[arbitration.SubmitProposalResponse]:
    """Append a proposal and return its decision once both are durable. A refusal by policy is a decision."""
    request = arbitration.SubmitProposalRequest(bus=bus, envelope=with_event_id(envelope))
    return unary_call(ArbitrationServiceStub, lambda stub: stub.SubmitProposal, request, timeout_ms)


def batch_submit_proposals(
    envelopes: Iterable[Envelope], *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[arbitration.BatchSubmitProposalsResponse]:
    """Submit 1..500 proposals; return a decision or a google.rpc.Status (`GavelError.from_status`) for each, in order."""
    request = arbitration.BatchSubmitProposalsRequest(bus=bus, envelopes=map(with_event_id, envelopes))
    return unary_call(ArbitrationServiceStub, lambda stub: stub.BatchSubmitProposals, request, timeout_ms)


def stream_proposals_request(request_id: str, envelope: Envelope, bus: str) -> arbitration.StreamProposalsRequest:
    """Return one request of StreamProposals. The response repeats `request_id`, at most 128 characters."""
    return arbitration.StreamProposalsRequest(request_id=request_id, bus=bus, envelope=with_event_id(envelope))


def preflight(
    envelope: Envelope,
    *,
    rule_set_override: str = "",
    explain: bool = False,
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[arbitration.PreflightResponse]:
    """Return the decision that a proposal would get now. The server writes and counts nothing (constitution §6.4).

    `rule_set_override` is a document that replaces the active one with its policy_id; `explain` adds the outcome of every rule.
    """
    request = arbitration.PreflightRequest(bus=bus, envelope=envelope, rule_set_override=rule_set_override, explain=explain)
    return unary_call(ArbitrationServiceStub, lambda stub: stub.Preflight, request, timeout_ms)


def batch_preflight(
    envelopes: Iterable[Envelope], *, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[arbitration.BatchPreflightResponse]:
    """Preflight 1..500 proposals, each as if it were the only one; return the results in order."""
    request = arbitration.BatchPreflightRequest(bus=bus, envelopes=envelopes)
    return unary_call(ArbitrationServiceStub, lambda stub: stub.BatchPreflight, request, timeout_ms)


def resolve_review(
    decision_id: str,
    verdict: ReviewVerdict.ValueType,
    *,
    reviewer: str = "",
    reason: str,
    event_id: str = "",
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[arbitration.ResolveReviewResponse]:
    """Record a verdict or a comment on the open review of `decision_id`. `event_id` is the idempotency key.

    `reviewer` is the person; leave it empty on a server with authentication, where it is the caller. The response holds
    the decision that followed or, if the review needs more votes, the vote.
    """
    request = arbitration.ResolveReviewRequest(
        bus=bus, decision_id=decision_id, verdict=verdict, reviewer=reviewer, reason=reason, event_id=event_id or new_event_id()
    )
    return unary_call(ArbitrationServiceStub, lambda stub: stub.ResolveReview, request, timeout_ms)


def revoke_decision(
    decision_id: str, *, revoked_by: str = "", reason: str, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[arbitration.RevokeDecisionResponse]:
    """Revoke an approved decision whose execution has not started. `event_id` is the idempotency key.

    `revoked_by` is the person; leave it empty on a server with authentication, where it is the caller.
    """
    request = arbitration.RevokeDecisionRequest(
        bus=bus, decision_id=decision_id, revoked_by=revoked_by, reason=reason, event_id=event_id or new_event_id()
    )
    return unary_call(ArbitrationServiceStub, lambda stub: stub.RevokeDecision, request, timeout_ms)


def wait_decision(
    decision_id: str,
    *,
    phase: arbitration.DecisionPhase.ValueType = arbitration.DECISION_PHASE_DECIDED,
    bus: str = "",
    timeout_ms: int = WAIT_TIMEOUT_MS,
) -> UnaryCall[arbitration.WaitDecisionResponse]:
    """Wait until a decision has reached a phase: DECIDED, EXECUTED or CLOSED. Return after `timeout_ms` (at most 60 s) in any case.

    `decision_id` may also be the event_id of a proposal. The response holds the latest decision, the last report and the phase reached.
    """
    timeout = Duration()
    timeout.FromMilliseconds(timeout_ms)
    request = arbitration.WaitDecisionRequest(bus=bus, decision_id=decision_id, phase=phase, timeout=timeout)
    # The server answers when the time is over; the call lasts longer only if the server is slow or restarts.
    return unary_call(ArbitrationServiceStub, lambda stub: stub.WaitDecision, request, timeout_ms + READ_TIMEOUT_MS)


def poll_ms(ends_at: float) -> int:
    """Return the timeout of one WaitDecision, for a wait that ends at `ends_at` of the monotonic clock, in seconds."""
    return max(0, min(WAIT_TIMEOUT_MS, math.ceil((ends_at - time.monotonic()) * 1000)))

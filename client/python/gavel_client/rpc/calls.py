"""Descriptions of the contract's calls: the request built from plain arguments, the deadline, whether a retry is safe.

These functions perform no call. `client.GavelClient` awaits the described call and `sync.SyncGavelClient` blocks on it; the methods of
both are generated from here (`make methods`). An empty `bus` means the client's. `timeout_ms` is the deadline of
the whole call, including retries and pauses; for a stream None means no deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import grpc
from gavel.v1 import administration_service_pb2 as administration
from gavel.v1 import arbitration_service_pb2 as arbitration
from gavel.v1 import audit_service_pb2 as audits
from gavel.v1 import event_service_pb2 as events
from gavel.v1 import execution_service_pb2 as executions
from gavel.v1 import projection_service_pb2 as projections
from gavel.v1 import proof_service_pb2 as proofs
from gavel.v1 import replay_service_pb2 as replays
from gavel.v1 import rule_set_service_pb2 as rule_sets
from gavel.v1 import tool_service_pb2 as tools
from gavel.v1 import work_service_pb2 as work
from gavel.v1.administration_service_pb2_grpc import AdministrationServiceStub
from gavel.v1.arbitration_service_pb2_grpc import ArbitrationServiceStub
from gavel.v1.audit_service_pb2_grpc import AuditServiceStub
from gavel.v1.common_pb2 import EventCategory, Producer, VersionBinding
from gavel.v1.decision_pb2 import ENGINE_UNSPECIFIED, Engine, Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2_grpc import EventServiceStub
from gavel.v1.execution_service_pb2_grpc import ExecutionServiceStub
from gavel.v1.fact_pb2 import ACTIVATION_MODE_ACTIVE, ActivationMode, ReviewVerdict
from gavel.v1.projection_service_pb2_grpc import ProjectionServiceStub
from gavel.v1.proof_service_pb2_grpc import ProofServiceStub
from gavel.v1.replay_service_pb2_grpc import ReplayServiceStub
from gavel.v1.rule_set_service_pb2_grpc import RuleSetServiceStub
from gavel.v1.tool_pb2 import ToolBinding, ToolContract, ToolProvider
from gavel.v1.tool_service_pb2_grpc import ToolServiceStub
from gavel.v1.work_service_pb2 import WorkQueue
from gavel.v1.work_service_pb2_grpc import WorkServiceStub
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_client.envelopes import new_event_id

READ_TIMEOUT_MS: Final = 10_000
# A proposal in a contest is decided when the contest closes. Its call needs a deadline longer than the contest's window.
WRITE_TIMEOUT_MS: Final = 30_000
# The server compiles a rule set before it responds.
COMPILE_TIMEOUT_MS: Final = 60_000
# The first proof of a long log reads the whole log.
PROOF_TIMEOUT_MS: Final = 300_000
# An audit reads the log from its start, twice if it makes decisions again.
AUDIT_TIMEOUT_MS: Final = 300_000
# The longest wait of one WaitDecision.
WAIT_TIMEOUT_MS: Final = 60_000

# Responses may be larger than requests: a page of 1,000 events, 500 decisions with their evidence.
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
# By default gRPC's pause between connection attempts grows to two minutes, too long for a restart of the server.
RECONNECT_PAUSE_MS_MIN: Final = 100
RECONNECT_PAUSE_MS_MAX: Final = 1_000
# Timeout of one connection attempt: long enough for a distant or busy server, short enough for a second attempt before a read's deadline.
CONNECT_TIMEOUT_MS: Final = 5_000
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_PAUSE_MS_MIN),
    # The name misleads: gRPC uses it as the minimum timeout of a connection attempt, not as a pause.
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_PAUSE_MS_MAX),
)


Stub = TypeVar("Stub")
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response")
Response_co = TypeVar("Response_co", covariant=True)


@dataclass(frozen=True)
class UnaryCall(Generic[Response_co]):
    """A call with one response. `rpc` selects the method of an instance of `stub`."""

    stub: Callable[[Any], Any]
    rpc: Callable[[Any], Any]
    request: Any
    timeout_ms: int
    repeatable: bool

    @property
    def bus(self) -> str:
        """The bus that the request names, if it can name one."""
        return str(getattr(self.request, "bus", ""))


@dataclass(frozen=True)
class StreamCall(Generic[Response_co]):
    """A call with a stream of responses. It is never retried, because only the caller knows how far the stream came."""

    stub: Callable[[Any], Any]
    rpc: Callable[[Any], Any]
    request: Any
    timeout_ms: int | None

    @property
    def bus(self) -> str:
        """The bus that the request names, if it can name one."""
        return str(getattr(self.request, "bus", ""))


def submit_proposal(
    envelope: Envelope, *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[arbitration.SubmitProposalResponse]:
    """Append a proposal and return its decision once both are durable. A refusal by policy is a decision."""
    request = arbitration.SubmitProposalRequest(bus=bus, envelope=with_event_id(envelope))
    return _unary(ArbitrationServiceStub, lambda stub: stub.SubmitProposal, request, timeout_ms)


def batch_submit_proposals(
    envelopes: Iterable[Envelope], *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[arbitration.BatchSubmitProposalsResponse]:
    """Submit 1..500 proposals; return a decision or a google.rpc.Status (`GavelError.from_status`) for each, in order."""
    request = arbitration.BatchSubmitProposalsRequest(bus=bus, envelopes=map(with_event_id, envelopes))
    return _unary(ArbitrationServiceStub, lambda stub: stub.BatchSubmitProposals, request, timeout_ms)


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

    `rule_set_override` is a document that replaces the active one with its policy_id; `explain` adds every rule.
    """
    request = arbitration.PreflightRequest(bus=bus, envelope=envelope, rule_set_override=rule_set_override, explain=explain)
    return _unary(ArbitrationServiceStub, lambda stub: stub.Preflight, request, timeout_ms)


def batch_preflight(
    envelopes: Iterable[Envelope], *, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[arbitration.BatchPreflightResponse]:
    """Preflight 1..500 proposals, each as if it were the only one; return the results in order."""
    request = arbitration.BatchPreflightRequest(bus=bus, envelopes=envelopes)
    return _unary(ArbitrationServiceStub, lambda stub: stub.BatchPreflight, request, timeout_ms)


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
    return _unary(ArbitrationServiceStub, lambda stub: stub.ResolveReview, request, timeout_ms)


def revoke_decision(
    decision_id: str, *, revoked_by: str = "", reason: str, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[arbitration.RevokeDecisionResponse]:
    """Revoke an approved decision whose execution has not started. `event_id` is the idempotency key.

    `revoked_by` is the person; leave it empty on a server with authentication, where it is the caller.
    """
    request = arbitration.RevokeDecisionRequest(
        bus=bus, decision_id=decision_id, revoked_by=revoked_by, reason=reason, event_id=event_id or new_event_id()
    )
    return _unary(ArbitrationServiceStub, lambda stub: stub.RevokeDecision, request, timeout_ms)


def publish_event(envelope: Envelope, *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS) -> UnaryCall[events.PublishEventResponse]:
    """Append a fact, an observation, a tool event or a diagnostic; return it as recorded in the log."""
    request = events.PublishEventRequest(bus=bus, envelope=with_event_id(envelope))
    return _unary(EventServiceStub, lambda stub: stub.PublishEvent, request, timeout_ms)


def batch_publish_events(
    envelopes: Iterable[Envelope], *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[events.BatchPublishEventsResponse]:
    """Append 1..500 events; return an envelope or a google.rpc.Status (`GavelError.from_status`) for each, in order."""
    request = events.BatchPublishEventsRequest(bus=bus, envelopes=map(with_event_id, envelopes))
    return _unary(EventServiceStub, lambda stub: stub.BatchPublishEvents, request, timeout_ms)


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
    return _unary(ArbitrationServiceStub, lambda stub: stub.WaitDecision, request, timeout_ms + READ_TIMEOUT_MS)


def accept_clock(
    *, accepted_by: str, reason: str, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[events.AcceptClockResponse]:
    """Allow writes to a bus whose last event is ahead of the clocks; return the recorded FACT."""
    request = events.AcceptClockRequest(bus=bus, accepted_by=accepted_by, reason=reason)
    return _unary(EventServiceStub, lambda stub: stub.AcceptClock, request, timeout_ms)


def accept_loss(
    *, head_sequence_number: int, accepted_by: str, reason: str, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[events.AcceptLossResponse]:
    """Allow writes to a bus whose log has lost acknowledged events and ends at `head_sequence_number`; return the recorded FACT."""
    request = events.AcceptLossRequest(bus=bus, accepted_by=accepted_by, reason=reason, head_sequence_number=head_sequence_number)
    return _unary(EventServiceStub, lambda stub: stub.AcceptLoss, request, timeout_ms)


def get_event(
    *, event_id: str = "", sequence_number: int = 0, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[events.GetEventResponse]:
    """Read one event, by its UUID (while the bus remembers it) or by its sequence number, from 1."""
    if bool(event_id) == bool(sequence_number):
        raise ValueError("pass either event_id or sequence_number, not both or neither")
    if event_id:
        request = events.GetEventRequest(bus=bus, event_id=event_id)
    else:
        request = events.GetEventRequest(bus=bus, sequence_number=sequence_number)
    return _unary(EventServiceStub, lambda stub: stub.GetEvent, request, timeout_ms)


def list_events(
    *,
    categories: Sequence[EventCategory.ValueType] = (),
    subject: str = "",
    trace_id: str = "",
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    action_types: Sequence[str] = (),
    outcomes: Sequence[Outcome.ValueType] = (),
    reason_codes: Sequence[str] = (),
    recorded_from: Timestamp | None = None,
    recorded_until: Timestamp | None = None,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[events.ListEventsResponse]:
    """Read a page of the events that pass all filters, oldest first; an empty filter passes all (AIP-158).

    `recorded_from` is the first recording time that passes, `recorded_until` the first one that no longer does.
    """
    request = events.ListEventsRequest(
        bus=bus,
        categories=categories,
        subject=subject,
        trace_id=trace_id,
        from_sequence_number=from_sequence_number,
        to_sequence_number=to_sequence_number,
        action_types=action_types,
        outcomes=outcomes,
        reason_codes=reason_codes,
        recorded_from=recorded_from,
        recorded_until=recorded_until,
        page_size=page_size,
        page_token=page_token,
    )
    return _unary(EventServiceStub, lambda stub: stub.ListEvents, request, timeout_ms)


def subscribe_events(
    *,
    from_sequence_number: int = 0,
    categories: Sequence[EventCategory.ValueType] = (),
    subject_prefix: str = "",
    trace_id: str = "",
    action_types: Sequence[str] = (),
    outcomes: Sequence[Outcome.ValueType] = (),
    bus: str = "",
    timeout_ms: int | None = None,
) -> StreamCall[events.SubscribeEventsResponse]:
    """Stream the past events and then new ones, without gap or duplicate, and checkpoints while no event passes the filters.

    After an error, subscribe again from the sequence number after the last envelope or checkpoint.
    """
    request = events.SubscribeEventsRequest(
        bus=bus,
        from_sequence_number=from_sequence_number,
        categories=categories,
        subject_prefix=subject_prefix,
        trace_id=trace_id,
        action_types=action_types,
        outcomes=outcomes,
    )
    return _stream(EventServiceStub, lambda stub: stub.SubscribeEvents, request, timeout_ms)


def get_trace(trace_id: str, *, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[events.GetTraceResponse]:
    """Read the events of a trace, with tool calls paired to their results (constitution 001)."""
    request = events.GetTraceRequest(bus=bus, trace_id=trace_id)
    return _unary(EventServiceStub, lambda stub: stub.GetTrace, request, timeout_ms)


def audit_trace(
    trace_id: str, *, without_recomputation: bool = False, bus: str = "", timeout_ms: int = AUDIT_TIMEOUT_MS
) -> UnaryCall[audits.AuditTraceResponse]:
    """Audit a trace: models, tools, rule sets, facts, people, drift, and its decisions made again unless `without_recomputation`."""
    request = audits.AuditTraceRequest(bus=bus, trace_id=trace_id, without_recomputation=without_recomputation)
    return _unary(AuditServiceStub, lambda stub: stub.AuditTrace, request, timeout_ms)


def audit_decision(
    decision_id: str, *, without_recomputation: bool = False, bus: str = "", timeout_ms: int = AUDIT_TIMEOUT_MS
) -> UnaryCall[audits.AuditDecisionResponse]:
    """Audit the decisions on one proposal; see `audit_trace`."""
    request = audits.AuditDecisionRequest(bus=bus, decision_id=decision_id, without_recomputation=without_recomputation)
    return _unary(AuditServiceStub, lambda stub: stub.AuditDecision, request, timeout_ms)


def begin_execution(
    decision_id: str,
    *,
    producer: Producer,
    lease_ms: int = 0,
    request_id: str = "",
    version_binding: VersionBinding | None = None,
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[executions.BeginExecutionResponse]:
    """Start an attempt of an approved decision with a lease of `lease_ms` (0: 30,000); a refusal is part of the response.

    `request_id` (default: a new one) names the request: sent again after a lost response, it gets the same attempt while that
    runs. Count the lease from the first time that the request was sent. `version_binding` has the versions that the executor runs.
    """
    request = executions.BeginExecutionRequest(
        bus=bus,
        decision_id=decision_id,
        producer=producer,
        lease_ms=lease_ms,
        request_id=request_id or new_event_id(),
        version_binding=version_binding,
    )
    return _unary(ExecutionServiceStub, lambda stub: stub.BeginExecution, request, timeout_ms)


def renew_execution(
    decision_id: str,
    execution_id: str,
    *,
    producer: Producer,
    lease_ms: int = 0,
    request_id: str = "",
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[executions.RenewExecutionResponse]:
    """Extend the lease of a running attempt to `lease_ms` from now (0: 30,000). `request_id` as in `begin_execution`."""
    request = executions.RenewExecutionRequest(
        bus=bus,
        decision_id=decision_id,
        execution_id=execution_id,
        producer=producer,
        lease_ms=lease_ms,
        request_id=request_id or new_event_id(),
    )
    return _unary(ExecutionServiceStub, lambda stub: stub.RenewExecution, request, timeout_ms)


def report_execution(
    envelope: Envelope, *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[executions.ReportExecutionResponse]:
    """Record the outcome of an attempt; return the report as recorded in the log (see `ReportExecutionResponse`)."""
    request = executions.ReportExecutionRequest(bus=bus, envelope=with_event_id(envelope))
    return _unary(ExecutionServiceStub, lambda stub: stub.ReportExecution, request, timeout_ms)


def validate_rule_set(
    document: str, *, bus: str = "", timeout_ms: int = COMPILE_TIMEOUT_MS
) -> UnaryCall[rule_sets.ValidateRuleSetResponse]:
    """Compile a rule set document (YAML or JSON) and return every mistake. The server writes nothing."""
    request = rule_sets.ValidateRuleSetRequest(bus=bus, document=document)
    return _unary(RuleSetServiceStub, lambda stub: stub.ValidateRuleSet, request, timeout_ms)


def deploy_rule_set(
    document: str, *, reason: str = "", bus: str = "", timeout_ms: int = COMPILE_TIMEOUT_MS
) -> UnaryCall[rule_sets.DeployRuleSetResponse]:
    """Record a rule set version. Deploying its digest again changes nothing; another digest under the version is ALREADY_EXISTS."""
    request = rule_sets.DeployRuleSetRequest(bus=bus, document=document, reason=reason)
    return _unary(RuleSetServiceStub, lambda stub: stub.DeployRuleSet, request, timeout_ms)


def activate_rule_set(
    policy_id: str,
    version: int,
    *,
    mode: ActivationMode.ValueType = ACTIVATION_MODE_ACTIVE,
    expected_active_version: int | None = None,
    reason: str = "",
    bus: str = "",
    timeout_ms: int = COMPILE_TIMEOUT_MS,
) -> UnaryCall[rule_sets.ActivateRuleSetResponse]:
    """Put a deployed version in force, or start it as a shadow, which decides nothing.

    If `expected_active_version` is set and not the version in force (0: none), the call fails with ABORTED.
    """
    request = rule_sets.ActivateRuleSetRequest(
        bus=bus, policy_id=policy_id, version=version, mode=mode, expected_active_version=expected_active_version, reason=reason
    )
    return _unary(RuleSetServiceStub, lambda stub: stub.ActivateRuleSet, request, timeout_ms, repeatable=False)


def deactivate_rule_set(
    policy_id: str,
    *,
    mode: ActivationMode.ValueType = ACTIVATION_MODE_ACTIVE,
    expected_active_version: int | None = None,
    reason: str = "",
    bus: str = "",
    timeout_ms: int = WRITE_TIMEOUT_MS,
) -> UnaryCall[rule_sets.DeactivateRuleSetResponse]:
    """Take a rule set out of force, or end its shadow.

    If `expected_active_version` is set and not the version in force (0: none), the call fails with ABORTED.
    """
    request = rule_sets.DeactivateRuleSetRequest(
        bus=bus, policy_id=policy_id, expected_active_version=expected_active_version, mode=mode, reason=reason
    )
    return _unary(RuleSetServiceStub, lambda stub: stub.DeactivateRuleSet, request, timeout_ms, repeatable=False)


def get_rule_set(
    policy_id: str, *, version: int = 0, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[rule_sets.GetRuleSetResponse]:
    """Read a deployed version; 0: the active one, or else the newest."""
    request = rule_sets.GetRuleSetRequest(bus=bus, policy_id=policy_id, version=version)
    return _unary(RuleSetServiceStub, lambda stub: stub.GetRuleSet, request, timeout_ms)


def list_rule_sets(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[rule_sets.ListRuleSetsResponse]:
    """Read a page of deployed versions, by policy_id and version."""
    request = rule_sets.ListRuleSetsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return _unary(RuleSetServiceStub, lambda stub: stub.ListRuleSets, request, timeout_ms)


def simulate_rule_set(
    document: str,
    *,
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    bus: str = "",
    timeout_ms: int | None = None,
) -> StreamCall[rule_sets.SimulateRuleSetResponse]:
    """Decide past proposals under a candidate document; stream the decisions that would change, then a summary."""
    request = rule_sets.SimulateRuleSetRequest(
        bus=bus, document=document, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number
    )
    return _stream(RuleSetServiceStub, lambda stub: stub.SimulateRuleSet, request, timeout_ms)


def get_projection(
    subject: str,
    *,
    min_sequence_number: int = 0,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[projections.GetProjectionResponse]:
    """Read a page of the state of `subject` once the projection covers `min_sequence_number` (constitution §10).

    `paging.whole_projection` reads all pages. Few subjects have more than one: a page holds 1,000 items and 2 MiB.
    """
    request = projections.GetProjectionRequest(
        bus=bus, subject=subject, min_sequence_number=min_sequence_number, page_size=page_size, page_token=page_token
    )
    return _unary(ProjectionServiceStub, lambda stub: stub.GetProjection, request, timeout_ms)


def list_pending_decisions(
    *,
    phases: Sequence[projections.PendingPhase.ValueType] = (),
    action_types: Sequence[str] = (),
    lost_work: bool = False,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[projections.ListPendingDecisionsResponse]:
    """Read a page of approved decisions that have not ended, oldest first. Empty filters select all.

    `lost_work` selects those whose item the work queue has lost.
    """
    request = projections.ListPendingDecisionsRequest(
        bus=bus, page_size=page_size, page_token=page_token, phases=phases, action_types=action_types, lost_work=lost_work
    )
    return _unary(ProjectionServiceStub, lambda stub: stub.ListPendingDecisions, request, timeout_ms)


def list_pending_reviews(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[projections.ListPendingReviewsResponse]:
    """Read a page of open reviews, oldest first."""
    request = projections.ListPendingReviewsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return _unary(ProjectionServiceStub, lambda stub: stub.ListPendingReviews, request, timeout_ms)


def get_status(
    *, include_projection_digest: bool = False, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[projections.GetStatusResponse]:
    """Read the state of the bus and of the server. The digest requires a read of the whole projection."""
    request = projections.GetStatusRequest(bus=bus, include_projection_digest=include_projection_digest)
    return _unary(ProjectionServiceStub, lambda stub: stub.GetStatus, request, timeout_ms)


def verify_replay(
    *,
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    engine: Engine.ValueType = ENGINE_UNSPECIFIED,
    bus: str = "",
    timeout_ms: int | None = None,
) -> StreamCall[replays.VerifyReplayResponse]:
    """Recompute the log's decisions and derived facts; stream progress, then a verdict."""
    request = replays.VerifyReplayRequest(
        bus=bus, from_sequence_number=from_sequence_number, to_sequence_number=to_sequence_number, engine=engine
    )
    return _stream(ReplayServiceStub, lambda stub: stub.VerifyReplay, request, timeout_ms)


def get_checkpoint(*, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[proofs.GetCheckpointResponse]:
    """Read the newest checkpoint that a notary has signed and published."""
    return _unary(ProofServiceStub, lambda stub: stub.GetCheckpoint, proofs.GetCheckpointRequest(bus=bus), timeout_ms)


def get_inclusion_proof(
    *, event_id: str = "", sequence_number: int = 0, tree_size: int = 0, bus: str = "", timeout_ms: int = PROOF_TIMEOUT_MS
) -> UnaryCall[proofs.GetInclusionProofResponse]:
    """Prove that an event, by its UUID or by its sequence number, is in the tree of a size; 0: of the head."""
    if bool(event_id) == bool(sequence_number):
        raise ValueError("pass either event_id or sequence_number, not both or neither")
    if event_id:
        request = proofs.GetInclusionProofRequest(bus=bus, event_id=event_id, tree_size=tree_size)
    else:
        request = proofs.GetInclusionProofRequest(bus=bus, sequence_number=sequence_number, tree_size=tree_size)
    return _unary(ProofServiceStub, lambda stub: stub.GetInclusionProof, request, timeout_ms)


def get_consistency_proof(
    from_size: int, to_size: int = 0, *, bus: str = "", timeout_ms: int = PROOF_TIMEOUT_MS
) -> UnaryCall[proofs.GetConsistencyProofResponse]:
    """Prove that the tree of `to_size` events, 0: of the head, begins with the tree of `from_size` events."""
    request = proofs.GetConsistencyProofRequest(bus=bus, from_size=from_size, to_size=to_size)
    return _unary(ProofServiceStub, lambda stub: stub.GetConsistencyProof, request, timeout_ms)


def publish_checkpoint(
    checkpoint: str, *, bus: str = "", timeout_ms: int = PROOF_TIMEOUT_MS
) -> UnaryCall[proofs.PublishCheckpointResponse]:
    """Let the server return this signed checkpoint; it must be one of the server's log."""
    request = proofs.PublishCheckpointRequest(bus=bus, checkpoint=checkpoint)
    return _unary(ProofServiceStub, lambda stub: stub.PublishCheckpoint, request, timeout_ms)


def register_contract(
    contract: ToolContract, *, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.RegisterContractResponse]:
    """Register a tool contract. Registering what is registered changes nothing."""
    request = tools.RegisterContractRequest(bus=bus, contract=contract, event_id=event_id or new_event_id())
    return _unary(ToolServiceStub, lambda stub: stub.RegisterContract, request, timeout_ms)


def register_provider(
    provider: ToolProvider, *, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.RegisterProviderResponse]:
    """Register a tool provider. Registering what is registered changes nothing."""
    request = tools.RegisterProviderRequest(bus=bus, provider=provider, event_id=event_id or new_event_id())
    return _unary(ToolServiceStub, lambda stub: stub.RegisterProvider, request, timeout_ms)


def bind_tool(
    binding: ToolBinding, *, event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.BindToolResponse]:
    """Bind a tool to a provider, for the bus or for one session."""
    request = tools.BindToolRequest(bus=bus, binding=binding, event_id=event_id or new_event_id())
    return _unary(ToolServiceStub, lambda stub: stub.BindTool, request, timeout_ms)


def unbind_tool(
    tool_name: str, *, session_id: str = "", event_id: str = "", bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[tools.UnbindToolResponse]:
    """End the binding of a tool, for the bus or for one session."""
    request = tools.UnbindToolRequest(bus=bus, tool_name=tool_name, session_id=session_id, event_id=event_id or new_event_id())
    return _unary(ToolServiceStub, lambda stub: stub.UnbindTool, request, timeout_ms)


def resolve_tool(
    tool_name: str, *, session_id: str = "", canonical_only: bool = False, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ResolveToolResponse]:
    """Find the contract and provider behind a canonical name or an alias, and whether an agent may call the tool."""
    request = tools.ResolveToolRequest(bus=bus, tool_name=tool_name, session_id=session_id, canonical_only=canonical_only)
    return _unary(ToolServiceStub, lambda stub: stub.ResolveTool, request, timeout_ms)


def list_contracts(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ListContractsResponse]:
    """Read a page of tool contracts, by name."""
    request = tools.ListContractsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return _unary(ToolServiceStub, lambda stub: stub.ListContracts, request, timeout_ms)


def list_providers(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ListProvidersResponse]:
    """Read a page of tool providers, by provider_id."""
    request = tools.ListProvidersRequest(bus=bus, page_size=page_size, page_token=page_token)
    return _unary(ToolServiceStub, lambda stub: stub.ListProviders, request, timeout_ms)


def list_bindings(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[tools.ListBindingsResponse]:
    """Read a page of bindings of tools: those of the bus first, then by session and tool."""
    request = tools.ListBindingsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return _unary(ToolServiceStub, lambda stub: stub.ListBindings, request, timeout_ms)


def list_parked(
    queue: WorkQueue.ValueType,
    group: str,
    *,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[work.ListParkedResponse]:
    """Read a page of the parked items of a group, oldest first."""
    request = work.ListParkedRequest(bus=bus, queue=queue, group=group, page_size=page_size, page_token=page_token)
    return _unary(WorkServiceStub, lambda stub: stub.ListParked, request, timeout_ms)


def retry_parked(
    queue: WorkQueue.ValueType, group: str, *, item_ids: Iterable[str] = (), bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[work.RetryParkedResponse]:
    """Put parked items back into their queue: those named, or all of the group."""
    request = work.RetryParkedRequest(bus=bus, queue=queue, group=group, item_ids=item_ids)
    return _unary(WorkServiceStub, lambda stub: stub.RetryParked, request, timeout_ms)


def discard_parked(
    queue: WorkQueue.ValueType, group: str, item_ids: Iterable[str], *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[work.DiscardParkedResponse]:
    """Drop parked items of a group."""
    request = work.DiscardParkedRequest(bus=bus, queue=queue, group=group, item_ids=item_ids)
    return _unary(WorkServiceStub, lambda stub: stub.DiscardParked, request, timeout_ms)


def list_consumers(*, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[work.ListConsumersResponse]:
    """Read the groups of a bus's work queues with their lags."""
    return _unary(WorkServiceStub, lambda stub: stub.ListConsumers, work.ListConsumersRequest(bus=bus), timeout_ms)


def who_am_i(*, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[administration.WhoAmIResponse]:
    """Return the caller as the server has authenticated it, and its rights on the bus."""
    request = administration.WhoAmIRequest(bus=bus)
    return _unary(AdministrationServiceStub, lambda stub: stub.WhoAmI, request, timeout_ms)


def validate_grants(
    document: str, *, bus: str = "", timeout_ms: int = COMPILE_TIMEOUT_MS
) -> UnaryCall[administration.ValidateGrantsResponse]:
    """Compile a grants document and return all mistakes; deploy nothing."""
    request = administration.ValidateGrantsRequest(bus=bus, document=document)
    return _unary(AdministrationServiceStub, lambda stub: stub.ValidateGrants, request, timeout_ms)


def deploy_grants(
    document: str,
    *,
    reason: str = "",
    expected_version: int | None = None,
    bus: str = "",
    timeout_ms: int = COMPILE_TIMEOUT_MS,
) -> UnaryCall[administration.DeployGrantsResponse]:
    """Put grants in force.

    Deploying their digest again changes nothing; another digest under a known version is ALREADY_EXISTS. If `expected_version` is set and
    not the version in force (0: none), the call fails with ABORTED.
    """
    request = administration.DeployGrantsRequest(bus=bus, document=document, reason=reason, expected_version=expected_version)
    return _unary(AdministrationServiceStub, lambda stub: stub.DeployGrants, request, timeout_ms, repeatable=expected_version is None)


def get_grants(*, version: int = 0, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[administration.GetGrantsResponse]:
    """Read a deployed version of the grants; 0: the one in force."""
    request = administration.GetGrantsRequest(bus=bus, version=version)
    return _unary(AdministrationServiceStub, lambda stub: stub.GetGrants, request, timeout_ms)


def list_grants(
    *, page_size: int = 0, page_token: str = "", bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[administration.ListGrantsResponse]:
    """Read a page of the deployed versions of the grants, newest first."""
    request = administration.ListGrantsRequest(bus=bus, page_size=page_size, page_token=page_token)
    return _unary(AdministrationServiceStub, lambda stub: stub.ListGrants, request, timeout_ms)


def create_bus(*, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS) -> UnaryCall[administration.CreateBusResponse]:
    """Open the bus. ALREADY_EXISTS if there is one of this name."""
    request = administration.CreateBusRequest(bus=bus)
    return _unary(AdministrationServiceStub, lambda stub: stub.CreateBus, request, timeout_ms, repeatable=False)


def list_buses(
    *, page_size: int = 0, page_token: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[administration.ListBusesResponse]:
    """Read a page of the buses that the caller may read, by name."""
    request = administration.ListBusesRequest(page_size=page_size, page_token=page_token)
    return _unary(AdministrationServiceStub, lambda stub: stub.ListBuses, request, timeout_ms)


def poll_ms(ends_at: float) -> int:
    """Return the timeout of one WaitDecision, for a wait that ends at `ends_at` of the monotonic clock, in seconds."""
    return max(0, min(WAIT_TIMEOUT_MS, math.ceil((ends_at - time.monotonic()) * 1000)))


def with_event_id(envelope: Envelope) -> Envelope:
    """Return the envelope with an event_id, so that a retry sends the same event."""
    if envelope.event_id:
        return envelope
    copy = Envelope()
    copy.CopyFrom(envelope)
    copy.event_id = new_event_id()
    return copy


# These two functions exist for their types, which tie a request and its response to one method of one stub.


def _unary(
    stub: Callable[[grpc.Channel], Stub],
    rpc: Callable[[Stub], grpc.UnaryUnaryMultiCallable[Request, Response]],
    request: Request,
    timeout_ms: int,
    *,
    repeatable: bool = True,
) -> UnaryCall[Response]:
    return UnaryCall(stub, rpc, request, timeout_ms, repeatable)


def _stream(
    stub: Callable[[grpc.Channel], Stub],
    rpc: Callable[[Stub], grpc.UnaryStreamMultiCallable[Request, Response]],
    request: Request,
    timeout_ms: int | None,
) -> StreamCall[Response]:
    return StreamCall(stub, rpc, request, timeout_ms)

"""The layers that scenarios are played on: their common interface, and the bare core. `server_layers` has the others.

A layer performs a step and answers with messages of the contract. `player` compares the answers with what a file expects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gavel.v1 import decision_pb2, execution_service_pb2
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.common_pb2 import Producer, VersionBinding
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel.v1.event_service_pb2 import GetTraceResponse
from gavel.v1.execution_service_pb2 import BeginExecutionResponse
from gavel.v1.projection_service_pb2 import PendingDecision, PendingReview, Projection
from gavel.v1.tool_pb2 import ToolContract
from gavel_rules.commands import (
    ActivateRuleSet,
    Answer,
    AttemptRefusal,
    BeginExecution,
    Command,
    DeactivateRuleSet,
    DeployRuleSet,
    EventAnswer,
    Fault,
    LeasedAttempt,
    PublishEvent,
    RenewExecution,
    ReportExecution,
    ResolveReview,
    RevokeDecision,
    SubmitProposal,
    Tick,
    UnfilledCounters,
)
from gavel_rules.decider import handle
from gavel_rules.events.proposal_view import ProposalView
from gavel_rules.reason_codes import number_of, remedies_of
from gavel_server.bus.idempotency.same_request import is_same_request
from gavel_server.errors import ServiceError
from gavel_server.intake.admission import admit, producer_for_execution
from gavel_server.intake.human_commands import resolution, revocation
from gavel_server.intake.tools import contract_registration
from gavel_server.services.reads import views
from gavel_server.services.reads.paging import PAGE_BYTES_MAX
from gavel_server.services.reads.subject_projection import fill_projection, subject_items
from gavel_server.services.reads.trace_reading import read_trace

from tests.scenarios.reader import RuleSet
from tests.support.driver import Core, copy_command, replay_log

TIMERS_MAX: Final = 1_000
# Limit for an answer, which comes at once unless something is broken. Beside other load, servers and clients may stand still for seconds.
ANSWER_MS_MAX: Final = 100_000
PROPOSALS: Final = frozenset({"proposal"})
REPORTS: Final = frozenset({"execution"})
OTHERS: Final = frozenset({"fact", "observation", "tool_call", "tool_result", "agent_diagnostic"})


class CallError(Exception):
    """A call was answered with an error. `reason` is its ErrorReason without prefix."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(f"{reason}: {message}")


class Layer(Protocol):
    """One bus. Calls that carry an event return it as recorded. Every call raises CallError if it is answered with an error."""

    bus: str

    async def set_time(self, now_ms: int) -> None:
        """Set the clock, in milliseconds since the epoch."""

    async def tick(self) -> None:
        """Fire the timers that are due."""

    async def deploy(self, rule_set: RuleSet) -> None:
        """Record a rule set version."""

    async def activate(self, policy_id: str, version: int, *, shadow: bool = False) -> None:
        """Put a version in force, or make it a shadow."""

    async def deactivate(self, policy_id: str) -> None:
        """Take a rule set out of force."""

    async def publish(self, envelope: Envelope) -> Envelope:
        """Publish a fact, an observation or a tool event."""

    async def propose(self, envelope: Envelope) -> Envelope:
        """Submit a proposal; return its decision."""

    async def preflight(self, envelope: Envelope) -> Decision:
        """Return the decision that a proposal would get; nothing is recorded."""

    async def register(self, contract: ToolContract) -> None:
        """Register a tool's contract."""

    async def trace(self, trace_id: str) -> GetTraceResponse:
        """Return a trace."""

    async def begin(self, decision_id: str, producer: Producer, lease_ms: int, binding: VersionBinding | None) -> BeginExecutionResponse:
        """Begin an attempt with an executor that runs some versions."""

    async def renew(self, decision_id: str, execution_id: str, producer: Producer, lease_ms: int) -> None:
        """Renew an attempt's lease."""

    async def report(self, envelope: Envelope) -> Envelope:
        """Report how an attempt ended."""

    async def resolve(self, request: ResolveReviewRequest) -> Envelope:
        """Resolve a review, or vote in it; return the decision that follows, else the vote."""

    async def revoke(self, request: RevokeDecisionRequest) -> Envelope:
        """Revoke an approval; return the decision that follows."""

    async def events(self, after: int) -> list[Envelope]:
        """Return the log's events after a sequence number."""

    async def projection(self, subject: str) -> Projection:
        """Return the projection of a subject."""

    async def pending(self) -> list[PendingDecision]:
        """Return all live decisions."""

    async def reviews(self) -> list[PendingReview]:
        """Return all open reviews."""

    async def prove(self, *, engines_agree: bool) -> None:
        """Replay the log: every decision must recompute, and the state must be the same."""


class CoreLayer:
    """The core alone, with the simplest form of what a server does around it: admission, and answers to repeated event ids."""

    def __init__(self, bus: str) -> None:
        self.bus = bus
        self.core = Core(bus=bus)

    async def set_time(self, now_ms: int) -> None:
        """See Layer."""
        self.core.now_ms = now_ms

    async def tick(self) -> None:
        """See Layer."""
        self._run(Tick(TIMERS_MAX))

    async def deploy(self, rule_set: RuleSet) -> None:
        """See Layer."""
        self._run(DeployRuleSet(self.core.new_id(), rule_set.compiled, rule_set.text))

    async def activate(self, policy_id: str, version: int, *, shadow: bool = False) -> None:
        """See Layer."""
        command = ActivateRuleSet(self.core.new_id(), policy_id, version, None, shadow)
        if isinstance(self._run(command), UnfilledCounters):
            self.core.fill_counters(self.core.open_counters(self.core.state.rule_sets[policy_id, version].rule_set))
            self._run(command)

    async def deactivate(self, policy_id: str) -> None:
        """See Layer."""
        self._run(DeactivateRuleSet(self.core.new_id(), policy_id, None))

    async def publish(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return self._record(envelope, OTHERS, PublishEvent)

    async def propose(self, envelope: Envelope) -> Envelope:
        """See Layer. Waits for the contest of a proposal that competes; another task must let it close."""
        self._admit(envelope, PROPOSALS)
        if not self._is_known(envelope):
            self._run(SubmitProposal(ProposalView(envelope)))
        while True:
            for event in self.core.events:
                if event.decision.proposal_id == envelope.event_id:
                    return event
            await asyncio.sleep(0)

    async def preflight(self, envelope: Envelope) -> Decision:
        """See Layer."""
        self._admit(envelope, PROPOSALS)
        command = copy_command(SubmitProposal(ProposalView(envelope)))
        mark = self.core.state.mark()
        handled = handle(self.core.state, command, self.core.references(command), self.core.now_ms)
        self.core.state.undo(mark)
        answer = _without_fault(handled.answer)
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope.decision

    async def register(self, contract: ToolContract) -> None:
        """See Layer."""
        self._run(contract_registration(contract, self.core.new_id()))

    async def trace(self, trace_id: str) -> GetTraceResponse:
        """See Layer."""
        events = [event for event in self.core.events if event.trace_id == trace_id]
        reading = read_trace(events)
        binding = reading.version_binding if reading.versions.bound else None
        return GetTraceResponse(envelopes=events, pairs=reading.pairs, drifts=reading.drifts(self.core.state), version_binding=binding)

    async def begin(self, decision_id: str, producer: Producer, lease_ms: int, binding: VersionBinding | None) -> BeginExecutionResponse:
        """See Layer."""
        command = BeginExecution(decision_id, _executor(producer), lease_ms, request_id=self.core.new_id(), version_binding=binding)
        answer = self._run(command)
        if isinstance(answer, AttemptRefusal):
            return BeginExecutionResponse(
                refusal=execution_service_pb2.ExecutionRefusal(
                    reason_code=answer.reason_code,
                    message=answer.message,
                    retry_after_ms=answer.retry_after_ms,
                    reason=number_of(answer.reason_code),
                    remedy=remedies_of(answer.reason_code),
                )
            )
        assert isinstance(answer, LeasedAttempt), answer
        execution = answer.envelope.execution
        return BeginExecutionResponse(
            started=execution_service_pb2.ExecutionStarted(
                execution_id=execution.execution_id, attempt=execution.attempt, warnings=execution.warnings
            )
        )

    async def renew(self, decision_id: str, execution_id: str, producer: Producer, lease_ms: int) -> None:
        """See Layer."""
        self._run(RenewExecution(decision_id, execution_id, _executor(producer), lease_ms, request_id=self.core.new_id()))

    async def report(self, envelope: Envelope) -> Envelope:
        """See Layer."""
        return self._record(envelope, REPORTS, ReportExecution)

    async def resolve(self, request: ResolveReviewRequest) -> Envelope:
        """See Layer."""
        return self._record_human(resolution(request))

    async def revoke(self, request: RevokeDecisionRequest) -> Envelope:
        """See Layer."""
        return self._record_human(revocation(request))

    async def events(self, after: int) -> list[Envelope]:
        """See Layer."""
        return self.core.events[after:]

    async def projection(self, subject: str) -> Projection:
        """See Layer."""
        state = self.core.state
        answer = Projection(subject=subject, projection_version=state.head)
        for _ in fill_projection(answer, subject_items(state, subject, 10_000), PAGE_BYTES_MAX):
            pass
        return answer

    async def pending(self) -> list[PendingDecision]:
        """See Layer."""
        return list(map(views.pending_decision, self.core.state.pending_decisions()))

    async def reviews(self) -> list[PendingReview]:
        """See Layer."""
        state = self.core.state
        return list(
            views.pending_reviews(
                sorted(state.reviews.values(), key=lambda one: one.sequence_number), views.compensated_decisions(state), state.bus
            )
        )

    async def prove(self, *, engines_agree: bool) -> None:
        """See Layer."""
        self.core.prove()
        if engines_agree:
            replay_log(self.bus, self.core.records, engine=decision_pb2.ENGINE_REFERENCE)

    def _record(self, envelope: Envelope, payloads: frozenset[str], command: Callable[[Envelope], Command]) -> Envelope:
        self._admit(envelope, payloads)
        if self._is_known(envelope):
            return self.core.by_id[envelope.event_id]
        answer = self._run(command(envelope))
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def _is_known(self, envelope: Envelope) -> bool:
        """Return whether the log has this event; the same event_id with other content is an error."""
        known = self.core.by_id.get(envelope.event_id)
        if known is not None and not is_same_request(known, envelope):
            raise CallError("EVENT_ID_REUSED", envelope.event_id)
        return known is not None

    def _record_human(self, command: ResolveReview | RevokeDecision) -> Envelope:
        if self._is_known(command.envelope):
            human_fact = self.core.by_id[command.envelope.event_id]
            if human_fact.fact.HasField("review_voted"):
                return human_fact
            return self.core.events[human_fact.sequence_number]  # the decision is the next event
        answer = self._run(command)
        assert isinstance(answer, EventAnswer), answer
        return answer.envelope

    def _admit(self, envelope: Envelope, payloads: frozenset[str]) -> None:
        try:
            admit(envelope, self.bus, payloads)
        except ServiceError as error:
            raise _call_error(error.reason, error.message) from error
        if not envelope.trace_id and envelope.causation_id in self.core.by_id:
            envelope.trace_id = self.core.by_id[envelope.causation_id].trace_id

    def _run(self, command: Command) -> Answer:
        return _without_fault(self.core.run(command))


def _without_fault(answer: Answer) -> Answer:
    if isinstance(answer, Fault):
        raise _call_error(answer.reason, answer.message)
    return answer


def _executor(producer: Producer) -> Producer:
    try:
        return producer_for_execution(producer)
    except ServiceError as error:
        raise _call_error(error.reason, error.message) from error


def _call_error(reason: ErrorReason.ValueType, message: str) -> CallError:
    return CallError(ErrorReason.Name(reason).removeprefix("ERROR_REASON_"), message)

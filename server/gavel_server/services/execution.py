"""ExecutionService: executors begin, renew and report attempts at approved decisions (constitution §4.4, §7).

A decision that may not be executed is an answer and not an error: an ExecutionRefusal with its reason.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import (
    BeginExecutionRequest,
    BeginExecutionResponse,
    ExecutionRefusal,
    ExecutionStarted,
    RenewExecutionRequest,
    RenewExecutionResponse,
    ReportExecutionRequest,
    ReportExecutionResponse,
)
from gavel_rules.commands import AttemptRefusal, BeginExecution, EventAnswer, LeasedAttempt, RenewExecution, ReportExecution
from gavel_rules.events.ids import is_uuid, uuid_problem
from gavel_rules.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN
from gavel_rules.reason_codes import number_of, remedies_of

from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import invalid
from gavel_server.intake.admission import admit, producer_for_execution
from gavel_server.intake.envelope_validation import binding_violations
from gavel_server.intake.formats import EXECUTION_ID
from gavel_server.log import LogError
from gavel_server.rpc.call_context import CallContext
from gavel_server.services.reads.log_reader import committed_envelope, envelope_of

REPORTABLE: Final = frozenset({"execution"})


class ExecutionServicer:
    """Serves ExecutionService on the buses of this server."""

    def __init__(self, buses: BusRegistry) -> None:
        self._buses = buses

    async def BeginExecution(self, request: BeginExecutionRequest, context: CallContext) -> BeginExecutionResponse:
        """Lease an attempt, or refuse with a reason."""
        violations = _violations(request) + binding_violations(request.version_binding, "version_binding")
        if violations:
            raise invalid(violations)
        producer = producer_for_execution(request.producer)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        lease_ms = request.lease_ms or LEASE_MS_DEFAULT
        binding = request.version_binding if request.HasField("version_binding") else None
        command = BeginExecution(request.decision_id, producer, lease_ms, context.traceparent, request.request_id, binding)
        answer = (await sequencer.execute(command, request.request_id, caller=context.caller, principal=context.principal)).answer
        match answer:
            case LeasedAttempt():
                execution = answer.envelope.execution
                started = ExecutionStarted(
                    execution_id=execution.execution_id,
                    attempt=execution.attempt,
                    lease_until=execution.lease_until,
                    lease_ms=lease_ms,
                    warnings=execution.warnings,
                    decision=await _with_chain_hash(sequencer, answer.decision),
                )
                return BeginExecutionResponse(started=started)
            case AttemptRefusal():
                refusal = ExecutionRefusal(
                    reason_code=answer.reason_code,
                    message=answer.message,
                    retry_after_ms=answer.retry_after_ms,
                    reason=number_of(answer.reason_code),
                    remedy=remedies_of(answer.reason_code),
                )
                return BeginExecutionResponse(refusal=refusal)
        raise TypeError(f"BeginExecution was answered with {type(answer).__name__}")

    async def RenewExecution(self, request: RenewExecutionRequest, context: CallContext) -> RenewExecutionResponse:
        """Renew a running attempt's lease."""
        violations = _violations(request)
        if not EXECUTION_ID.match(request.execution_id):
            violations.append(("execution_id", 'is not "exec_" and 12 hex digits'))
        if violations:
            raise invalid(violations)
        producer = producer_for_execution(request.producer)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        lease_ms = request.lease_ms or LEASE_MS_DEFAULT
        command = RenewExecution(request.decision_id, request.execution_id, producer, lease_ms, context.traceparent, request.request_id)
        answer = (await sequencer.execute(command, request.request_id, caller=context.caller, principal=context.principal)).answer
        if not isinstance(answer, EventAnswer):
            raise TypeError(f"RenewExecution was answered with {type(answer).__name__}")
        return RenewExecutionResponse(lease_until=answer.envelope.execution.lease_until, lease_ms=lease_ms)

    async def ReportExecution(self, request: ReportExecutionRequest, context: CallContext) -> ReportExecutionResponse:
        """Record how an attempt ended."""
        self._buses.check_name(request.bus)
        envelope = request.envelope
        idempotency_key = admit(envelope, request.bus or BUS_DEFAULT, REPORTABLE, traceparent=context.traceparent)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        completed = await sequencer.execute(
            ReportExecution(envelope), idempotency_key, envelope.ByteSize(), caller=context.caller, principal=context.principal
        )
        return ReportExecutionResponse(envelope=committed_envelope(completed))


def _violations(request: BeginExecutionRequest | RenewExecutionRequest) -> list[tuple[str, str]]:
    violations = [] if is_uuid(request.decision_id) else [("decision_id", "is not a UUID in canonical form")]
    if request.lease_ms != 0 and not LEASE_MS_MIN <= request.lease_ms <= LEASE_MS_MAX:
        violations.append(("lease_ms", f"is not between {LEASE_MS_MIN} and {LEASE_MS_MAX} (0: {LEASE_MS_DEFAULT})"))
    problem = uuid_problem(request.request_id) if request.request_id else ""
    if problem:
        violations.append(("request_id", problem))
    return violations


async def _with_chain_hash(sequencer: Sequencer, event: Envelope) -> Envelope:
    """Return an event of the state with its chain hash, or without it if the log cannot be read now: the attempt is leased already."""
    try:
        record = (await sequencer.log.read_many([event.sequence_number])).get(event.sequence_number)
    except LogError:
        record = None
    return event if record is None else envelope_of(record)

"""ExecutionService: executors start, keep and report attempts at approved decisions (seeds 002 §4.4, §7).

A decision that may not be started is an answer, not an error: a refusal with its reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from gavel.v1 import execution_service_pb2_grpc
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
from gavel_rules.commands import BeginExecution, NotStarted, Recorded, RenewExecution, ReportExecution, Started
from gavel_rules.events import is_uuid
from gavel_rules.limits import LEASE_MS_DEFAULT, LEASE_MS_MAX, LEASE_MS_MIN

from gavel_server.admission import EXECUTION_ID, admit, producer_for_execution
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import invalid
from gavel_server.log import LogError
from gavel_server.services.reading import envelope_of, recorded

if TYPE_CHECKING:
    from gavel_server.buses import Buses

REPORTABLE: Final = frozenset({"execution"})

_Context = grpc.aio.ServicerContext[Any, Any]


class ExecutionServicer(execution_service_pb2_grpc.ExecutionServiceServicer):
    """Serves ExecutionService on the buses of this server."""

    def __init__(self, buses: Buses) -> None:
        self._buses = buses

    async def BeginExecution(self, request: BeginExecutionRequest, context: _Context) -> BeginExecutionResponse:
        """Lease an attempt, or say why not."""
        violations = _decision_violations(request.decision_id) + _lease_violations(request.lease_ms)
        if violations:
            raise invalid(violations)
        producer = producer_for_execution(request.producer)
        sequencer = await self._buses.get(request.bus)
        command = BeginExecution(request.decision_id, producer, request.lease_ms or LEASE_MS_DEFAULT)
        answer = (await sequencer.execute(command)).answer
        match answer:
            case Started():
                execution = answer.envelope.execution
                started = ExecutionStarted(
                    execution_id=execution.execution_id,
                    attempt=execution.attempt,
                    lease_until=execution.lease_until,
                    decision=await _as_recorded(sequencer, answer.decision),
                )
                return BeginExecutionResponse(started=started)
            case NotStarted():
                refusal = ExecutionRefusal(reason_code=answer.reason_code, message=answer.message, retry_after_ms=answer.retry_after_ms)
                return BeginExecutionResponse(refusal=refusal)
        raise TypeError(f"BeginExecution was answered with {type(answer).__name__}")

    async def RenewExecution(self, request: RenewExecutionRequest, context: _Context) -> RenewExecutionResponse:
        """Keep a running attempt's lease."""
        violations = _decision_violations(request.decision_id) + _lease_violations(request.lease_ms)
        if not EXECUTION_ID.match(request.execution_id):
            violations.append(("execution_id", 'is not "exec_" and 12 hex digits'))
        if violations:
            raise invalid(violations)
        producer = producer_for_execution(request.producer)
        sequencer = await self._buses.get(request.bus)
        command = RenewExecution(request.decision_id, request.execution_id, producer, request.lease_ms or LEASE_MS_DEFAULT)
        answer = (await sequencer.execute(command)).answer
        if not isinstance(answer, Recorded):
            raise TypeError(f"RenewExecution was answered with {type(answer).__name__}")
        return RenewExecutionResponse(lease_until=answer.envelope.execution.lease_until)

    async def ReportExecution(self, request: ReportExecutionRequest, context: _Context) -> ReportExecutionResponse:
        """Record how an attempt ended."""
        sequencer = await self._buses.get(request.bus)
        envelope = request.envelope
        chosen = admit(envelope, sequencer.bus, REPORTABLE)
        completed = await sequencer.execute(ReportExecution(envelope), envelope.event_id if chosen else "", envelope.ByteSize())
        return ReportExecutionResponse(envelope=recorded(completed))


def _decision_violations(decision_id: str) -> list[tuple[str, str]]:
    return [] if is_uuid(decision_id) else [("decision_id", "is not a UUID in canonical form")]


def _lease_violations(lease_ms: int) -> list[tuple[str, str]]:
    if lease_ms == 0 or LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        return []
    return [("lease_ms", f"is not between {LEASE_MS_MIN} and {LEASE_MS_MAX} (0: {LEASE_MS_DEFAULT})")]


async def _as_recorded(sequencer: Sequencer, event: Envelope) -> Envelope:
    """Return an event of the state with its chain hash; without, if the log cannot say it now: the attempt is leased already."""
    try:
        record = (await sequencer.log.read_many([event.sequence_number])).get(event.sequence_number)
    except LogError:
        record = None
    return event if record is None else envelope_of(record)

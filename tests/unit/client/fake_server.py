"""A stand-in for the Gavel server: real gRPC, every RPC of the contract, answers from the test.

`FakeServer` records each request and answers with what the test scripted. `FakeExecutions` scripts the execution RPCs with the
little state that an executor can see: attempts, leases, outcomes. Neither decides anything; what is tested is the client.
"""

from __future__ import annotations

import inspect
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio
from gavel.v1 import (
    arbitration_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
)
from gavel.v1.common_pb2 import PRODUCER_TYPE_ARBITRATOR, Producer
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, Decision, RetryPolicy
from gavel.v1.diagnostic_pb2 import AgentDiagnostic
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventRequest, GetEventResponse
from gavel.v1.execution_pb2 import EXECUTION_STATUS_FAILED, EXECUTION_STATUS_TIMEOUT
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
from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_APPROVED,
    PENDING_PHASE_EXECUTING,
    ListPendingDecisionsRequest,
    ListPendingDecisionsResponse,
    PendingDecision,
)
from gavel_client.values import to_struct
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

FILES = (
    arbitration_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
)
METHODS: dict[str, MethodDescriptor] = {
    method.name: method for file in FILES for service in file.DESCRIPTOR.services_by_name.values() for method in service.methods
}


class RefusedError(Exception):
    """Scripted as an answer: the call fails with this google.rpc.Status."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(status.message)


def refused(
    code: grpc.StatusCode,
    reason: str = "",
    message: str = "scripted",
    *,
    retry_after_ms: int | None = None,
    violations: Iterable[tuple[str, str]] = (),
) -> RefusedError:
    """An error with the details that the contract promises."""
    details: list[Message] = []
    if reason:
        details.append(ErrorInfo(domain="gavel", reason=reason))
    if retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(retry_after_ms)
        details.append(RetryInfo(retry_delay=delay))
    found = [BadRequest.FieldViolation(field=name, description=problem) for name, problem in violations]
    if found:
        details.append(BadRequest(field_violations=found))
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    return RefusedError(Status(code=code.value[0], message=message, details=packed))


def status_metadata(error: RefusedError) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata that carries an error's Status."""
    return (("grpc-status-details-bin", error.status.SerializeToString()),)


class FakeServer:
    """A grpc.aio server of all services. Unscripted RPCs answer with an empty response, streams with none.

    `answers[name]` is a queue of answers, used up one by one: a response, a RefusedError, for a stream a list of these; or
    one callable that takes the request, for all calls.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.answers: dict[str, deque[Any] | Callable[[Any], Any]] = defaultdict(deque)
        self._server = grpc.aio.server()
        for file in FILES:
            for service in file.DESCRIPTOR.services_by_name.values():
                handlers = {method.name: self._handler(method) for method in service.methods}
                self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        self.target = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def script(self, name: str, *answers: Any) -> None:
        """Answer the next calls of `name` so."""
        queue = self.answers[name]
        assert isinstance(queue, deque)
        queue.extend(answers)

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Go away at once."""
        await self._server.stop(None)

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        response_type = GetMessageClass(method.output_type)

        async def unary(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
            self.requests[method.name].append(request)
            answer = await self._answer(method.name, request)
            if isinstance(answer, RefusedError):
                await _abort(context, answer)
            return response_type() if answer is None else answer

        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
            if method.client_streaming:
                request = [item async for item in request]
            self.requests[method.name].append(request)
            for item in await self._answer(method.name, request) or ():
                if isinstance(item, RefusedError):
                    await _abort(context, item)
                yield item

        kind = grpc.unary_unary_rpc_method_handler
        behaviour: Any = unary
        if method.server_streaming:
            kind = grpc.stream_stream_rpc_method_handler if method.client_streaming else grpc.unary_stream_rpc_method_handler
            behaviour = stream
        return kind(behaviour, GetMessageClass(method.input_type).FromString, lambda message: message.SerializeToString())

    async def _answer(self, name: str, request: Any) -> Any:
        answers = self.answers[name]
        if callable(answers):
            answer = answers(request)
            return await answer if inspect.isawaitable(answer) else answer
        return answers.popleft() if answers else None


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: RefusedError) -> None:
    code = next(code for code in grpc.StatusCode if code.value[0] == error.status.code)
    # An error of gRPC's own has no details.
    await context.abort(code, error.status.message, trailing_metadata=status_metadata(error) if error.status.details else ())


def approved(sequence_number: int, bus: str, *, action_type: str = "refund.create", max_attempts: int = 3, **policy: Any) -> Envelope:
    """An approved decision, as the log would hold it."""
    event_id = f"0190a000-0000-8000-8000-{sequence_number:012d}"
    decision = Decision(
        decision_id=event_id,
        outcome=OUTCOME_APPROVED,
        action_type=action_type,
        params=to_struct({"amount": 10, "currency": "EUR"}),
        retry_policy=RetryPolicy(
            max_attempts=max_attempts, **{"backoff_initial_ms": 20, "backoff_multiplier": 2.0, "backoff_max_ms": 30, **policy}
        ),
    )
    return Envelope(
        schema_version="gavel.v1",
        sequence_number=sequence_number,
        event_id=event_id,
        trace_id="trace-1",
        producer=Producer(type=PRODUCER_TYPE_ARBITRATOR, id="gavel"),
        subject="order/123",
        bus=bus,
        decision=decision,
    )


@dataclass
class FakeDecision:
    """What the fake knows of one decision."""

    envelope: Envelope
    attempt: int = 0
    running: bool = False
    lease_until: float = 0.0
    ended: bool = False
    refusal: str = ""
    """Where set, BeginExecution answers so."""


@dataclass
class FakeExecutions:
    """Begin, Renew, Report and the list of pending decisions, over the decisions that the test adds."""

    server: FakeServer
    decisions: dict[str, FakeDecision] = field(default_factory=dict)
    reports: dict[str, Envelope] = field(default_factory=dict)
    """What the log holds: reports by event_id."""

    def __post_init__(self) -> None:
        self.server.answers["BeginExecution"] = self.begin
        self.server.answers["RenewExecution"] = self.renew
        self.server.answers["ReportExecution"] = self.report
        self.server.answers["ListPendingDecisions"] = self.pending
        self.server.answers["GetEvent"] = self.event

    def add(self, decision: Envelope) -> FakeDecision:
        """Let the server know a decision."""
        self.decisions[decision.event_id] = FakeDecision(decision)
        return self.decisions[decision.event_id]

    def begin(self, request: BeginExecutionRequest) -> BeginExecutionResponse | RefusedError:
        """See the contract."""
        known = self.decisions.get(request.decision_id)
        if known is None:
            return refused(grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND")
        if known.refusal or known.ended:
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason_code=known.refusal or "ALREADY_FINISHED"))
        left_ms = int((known.lease_until - time.monotonic()) * 1000)
        if known.running and left_ms > 0:
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason_code="ALREADY_RUNNING", retry_after_ms=left_ms))
        known.attempt += 1
        known.running = True
        known.lease_until = time.monotonic() + request.lease_ms / 1000
        started = ExecutionStarted(execution_id=f"exec_{known.attempt:012d}", attempt=known.attempt, decision=known.envelope)
        return BeginExecutionResponse(started=started)

    def renew(self, request: RenewExecutionRequest) -> RenewExecutionResponse | RefusedError:
        """See the contract."""
        known = self.decisions[request.decision_id]
        if not known.running or request.execution_id != f"exec_{known.attempt:012d}" or time.monotonic() >= known.lease_until:
            return refused(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
        known.lease_until = time.monotonic() + request.lease_ms / 1000
        return RenewExecutionResponse()

    def report(self, request: ReportExecutionRequest) -> ReportExecutionResponse | RefusedError:
        """See the contract; a report of a superseded attempt becomes a diagnostic."""
        envelope = request.envelope
        known = self.decisions[envelope.execution.decision_id]
        if envelope.event_id in self.reports:
            return ReportExecutionResponse(envelope=self.reports[envelope.event_id])
        recorded = Envelope()
        recorded.CopyFrom(envelope)
        if envelope.execution.attempt < known.attempt:
            recorded.agent_diagnostic.CopyFrom(AgentDiagnostic(kind="LateExecutionReport"))
        else:
            retriable = envelope.execution.status in (EXECUTION_STATUS_FAILED, EXECUTION_STATUS_TIMEOUT)
            known.running = False
            recorded.execution.will_retry = retriable and known.attempt < known.envelope.decision.retry_policy.max_attempts
            known.ended = not recorded.execution.will_retry
        self.reports[envelope.event_id] = recorded
        return ReportExecutionResponse(envelope=recorded)

    def pending(self, _: ListPendingDecisionsRequest) -> ListPendingDecisionsResponse:
        """See the contract."""
        pending = sorted((known for known in self.decisions.values() if not known.ended), key=lambda known: known.envelope.sequence_number)
        head = max((known.envelope.sequence_number for known in self.decisions.values()), default=0)
        decisions = [
            PendingDecision(
                decision_id=known.envelope.event_id,
                sequence_number=known.envelope.sequence_number,
                action_type=known.envelope.decision.action_type,
                phase=PENDING_PHASE_EXECUTING if known.attempt else PENDING_PHASE_APPROVED,
            )
            for known in pending
        ]
        return ListPendingDecisionsResponse(decisions=decisions, projection_version=head)

    def event(self, request: GetEventRequest) -> GetEventResponse | RefusedError:
        """See the contract."""
        for known in self.decisions.values():
            if known.envelope.event_id == request.event_id or known.envelope.sequence_number == request.sequence_number:
                return GetEventResponse(envelope=known.envelope)
        return refused(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND")

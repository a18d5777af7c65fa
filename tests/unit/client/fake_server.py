"""A fake Gavel server: real gRPC and every RPC of the contract, with scripted responses.

`FakeServer` records each request and returns the responses that the test scripted. `FakeExecutions` implements the execution RPCs
with the state that an executor can observe: attempts, leases, outcomes. Neither makes decisions; the client is under test.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio
from gavel.v1 import (
    administration_service_pb2,
    arbitration_service_pb2,
    event_service_pb2,
    execution_service_pb2,
    projection_service_pb2,
    replay_service_pb2,
    rule_set_service_pb2,
    tool_service_pb2,
)
from gavel.v1.administration_service_pb2 import WhoAmIResponse
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
from gavel.v1.reason_code_pb2 import REASON_CODE_ALREADY_RUNNING, ReasonCode
from gavel_client.rpc.connection import BUS_INCARNATION_KEY, INCARNATION_QUESTION
from gavel_client.values import to_struct
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

FILES = (
    administration_service_pb2,
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


class ScriptedError(Exception):
    """A scripted failure: the call fails with this google.rpc.Status."""

    def __init__(self, status: Status) -> None:
        self.status = status
        super().__init__(status.message)


def refusal(
    code: grpc.StatusCode,
    reason: str = "",
    message: str = "scripted",
    *,
    retry_after_ms: int | None = None,
    violations: Iterable[tuple[str, str]] = (),
) -> ScriptedError:
    """Return an error with the details of the contract."""
    details: list[Message] = []
    if reason:
        details.append(ErrorInfo(domain="gavel", reason=reason))
    if retry_after_ms is not None:
        delay = Duration()
        delay.FromMilliseconds(retry_after_ms)
        details.append(RetryInfo(retry_delay=delay))
    field_violations = [BadRequest.FieldViolation(field=name, description=problem) for name, problem in violations]
    if field_violations:
        details.append(BadRequest(field_violations=field_violations))
    packed = []
    for detail in details:
        packed.append(AnyMessage())
        packed[-1].Pack(detail)
    return ScriptedError(Status(code=code.value[0], message=message, details=packed))


def status_metadata(error: ScriptedError) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata with an error's Status."""
    return (("grpc-status-details-bin", error.status.SerializeToString()),)


class FakeServer:
    """A grpc.aio server of all services. Unscripted RPCs return an empty response, or an empty stream.

    `answers[name]` is a queue of answers, each used once: a response, a ScriptedError, or for a stream a list of these. It may
    instead be one callable for all calls, which takes the request.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.bus_incarnation = ""
        self.incarnation_questions = 0
        self.incarnation_errors: deque[ScriptedError] = deque()  # for the next questions
        self._incarnation_held: tuple[asyncio.Event, asyncio.Event] | None = None
        self.incarnations: list[str] = []  # that came with the unary requests
        self.answers: dict[str, deque[Any] | Callable[[Any], Any]] = defaultdict(deque)
        self._server = grpc.aio.server()
        for file in FILES:
            for service in file.DESCRIPTOR.services_by_name.values():
                handlers = {method.name: self._handler(method) for method in service.methods}
                self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        self.target = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def script(self, name: str, *answers: Any) -> None:
        """Append answers for the next calls of `name`."""
        queue = self.answers[name]
        assert isinstance(queue, deque)
        queue.extend(answers)

    def hold_incarnation(self) -> tuple[asyncio.Event, asyncio.Event]:
        """Let questions about the incarnation set the first event, and wait for the second one."""
        self._incarnation_held = asyncio.Event(), asyncio.Event()
        return self._incarnation_held

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stop at once."""
        await self._server.stop(None)

    def _handler(self, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        response_type = GetMessageClass(method.output_type)

        async def unary(request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:
            metadata = list(context.invocation_metadata() or ())
            if INCARNATION_QUESTION[0] in metadata:
                self.incarnation_questions += 1
                if self._incarnation_held:
                    asked, go_on = self._incarnation_held
                    asked.set()
                    await go_on.wait()
                if self.incarnation_errors:
                    await _abort(context, self.incarnation_errors.popleft())
                return WhoAmIResponse(bus_incarnation=self.bus_incarnation)
            self.incarnations.append("".join(str(value) for key, value in metadata if key == BUS_INCARNATION_KEY))
            self.requests[method.name].append(request)
            answer = await self._answer(method.name, request)
            if isinstance(answer, ScriptedError):
                await _abort(context, answer)
            return response_type() if answer is None else answer

        async def stream(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Message]:
            if method.client_streaming:
                request = [item async for item in request]
            self.requests[method.name].append(request)
            for item in await self._answer(method.name, request) or ():
                if isinstance(item, ScriptedError):
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


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: ScriptedError) -> None:
    code = next(code for code in grpc.StatusCode if code.value[0] == error.status.code)
    # Errors of gRPC itself have no details.
    await context.abort(code, error.status.message, trailing_metadata=status_metadata(error) if error.status.details else ())


def approved_decision(
    sequence_number: int, bus: str, *, action_type: str = "refund.create", max_attempts: int = 3, **policy: Any
) -> Envelope:
    """Return an approved decision as recorded in the log."""
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
    """The fake's state of one decision."""

    envelope: Envelope
    attempt: int = 0
    running: bool = False
    lease_until: float = 0.0
    ended: bool = False
    refusal: str = ""
    """The reason code with which BeginExecution refuses, if set."""


@dataclass
class FakeExecutions:
    """The execution RPCs and ListPendingDecisions, for decisions that the test adds."""

    server: FakeServer
    decisions: dict[str, FakeDecision] = field(default_factory=dict)
    reports: dict[str, Envelope] = field(default_factory=dict)
    """The recorded reports, by event_id."""
    starts: dict[str, ExecutionStarted] = field(default_factory=dict)
    """The attempts, by the request_id that started them."""

    def __post_init__(self) -> None:
        self.server.answers["BeginExecution"] = self.begin
        self.server.answers["RenewExecution"] = self.renew
        self.server.answers["ReportExecution"] = self.report
        self.server.answers["ListPendingDecisions"] = self.pending
        self.server.answers["GetEvent"] = self.event

    def add(self, decision: Envelope) -> FakeDecision:
        """Add a decision to the server's state."""
        self.decisions[decision.event_id] = FakeDecision(decision)
        return self.decisions[decision.event_id]

    def begin(self, request: BeginExecutionRequest) -> BeginExecutionResponse | ScriptedError:
        """Handle BeginExecution. A repeated request_id gets the same attempt while it runs."""
        decision = self.decisions.get(request.decision_id)
        started = self.starts.get(request.request_id)
        if decision is not None and decision.running and started is not None and started.attempt == decision.attempt:
            return BeginExecutionResponse(started=started)
        if decision is None:
            return refusal(grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND")
        if decision.refusal or decision.ended:
            reason_code = decision.refusal or "ALREADY_FINISHED"
            # A later server may have codes that this client does not know.
            reason: Any = dict(ReasonCode.items()).get(f"REASON_CODE_{reason_code}", 9_999)
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason_code=reason_code, reason=reason))
        left_ms = int((decision.lease_until - time.monotonic()) * 1000)
        if decision.running and left_ms > 0:
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason=REASON_CODE_ALREADY_RUNNING, retry_after_ms=left_ms))
        decision.attempt += 1
        decision.running = True
        decision.lease_until = time.monotonic() + request.lease_ms / 1000
        started = ExecutionStarted(execution_id=f"exec_{decision.attempt:012d}", attempt=decision.attempt, decision=decision.envelope)
        self.starts[request.request_id] = started
        return BeginExecutionResponse(started=started)

    def renew(self, request: RenewExecutionRequest) -> RenewExecutionResponse | ScriptedError:
        """Handle RenewExecution."""
        decision = self.decisions[request.decision_id]
        if not decision.running or request.execution_id != f"exec_{decision.attempt:012d}" or time.monotonic() >= decision.lease_until:
            return refusal(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")
        decision.lease_until = time.monotonic() + request.lease_ms / 1000
        return RenewExecutionResponse()

    def report(self, request: ReportExecutionRequest) -> ReportExecutionResponse | ScriptedError:
        """Handle ReportExecution; a report of a superseded attempt becomes a diagnostic."""
        envelope = request.envelope
        decision = self.decisions[envelope.execution.decision_id]
        if envelope.event_id in self.reports:
            return ReportExecutionResponse(envelope=self.reports[envelope.event_id])
        recorded = Envelope()
        recorded.CopyFrom(envelope)
        recorded.causation_id = envelope.causation_id or envelope.execution.decision_id
        if envelope.execution.attempt < decision.attempt:
            recorded.agent_diagnostic.CopyFrom(AgentDiagnostic(kind="LateExecutionReport"))
        else:
            retriable = envelope.execution.status in (EXECUTION_STATUS_FAILED, EXECUTION_STATUS_TIMEOUT)
            decision.running = False
            recorded.execution.will_retry = retriable and decision.attempt < decision.envelope.decision.retry_policy.max_attempts
            decision.ended = not recorded.execution.will_retry
        self.reports[envelope.event_id] = recorded
        return ReportExecutionResponse(envelope=recorded)

    def pending(self, request: ListPendingDecisionsRequest) -> ListPendingDecisionsResponse:
        """Handle ListPendingDecisions."""
        pending = [decision for decision in self.decisions.values() if not decision.ended]
        pending.sort(key=lambda decision: decision.envelope.sequence_number)
        head = max((decision.envelope.sequence_number for decision in self.decisions.values()), default=0)
        decisions = [
            PendingDecision(
                decision_id=decision.envelope.event_id,
                sequence_number=decision.envelope.sequence_number,
                last_sequence_number=decision.envelope.sequence_number,
                action_type=decision.envelope.decision.action_type,
                phase=PENDING_PHASE_EXECUTING if decision.attempt else PENDING_PHASE_APPROVED,
            )
            for decision in pending
        ]
        decisions = [decision for decision in decisions if not request.phases or decision.phase in request.phases]
        return ListPendingDecisionsResponse(decisions=decisions, projection_version=head)

    def event(self, request: GetEventRequest) -> GetEventResponse | ScriptedError:
        """Handle GetEvent."""
        for decision in self.decisions.values():
            if decision.envelope.event_id == request.event_id or decision.envelope.sequence_number == request.sequence_number:
                return GetEventResponse(envelope=decision.envelope)
        return refusal(grpc.StatusCode.NOT_FOUND, "EVENT_NOT_FOUND")

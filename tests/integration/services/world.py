"""A whole server in this process: the real servicers, sequencer and gRPC, on a log in memory, with a clock that tests set."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import grpc
import pytest
from gavel.v1 import (
    administration_service_pb2_grpc,
    arbitration_service_pb2_grpc,
    audit_service_pb2_grpc,
    common_pb2,
    event_service_pb2_grpc,
    execution_service_pb2_grpc,
    fact_pb2,
    projection_service_pb2_grpc,
    proof_service_pb2_grpc,
    replay_service_pb2_grpc,
    rule_set_service_pb2_grpc,
    tool_service_pb2_grpc,
)
from gavel.v1.arbitration_service_pb2 import SubmitProposalRequest
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.error_pb2 import ErrorReason
from gavel.v1.event_service_pb2 import PublishEventRequest
from gavel.v1.execution_pb2 import Execution, ExecutionStatus
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, BeginExecutionResponse, ReportExecutionRequest
from gavel.v1.fact_pb2 import CrossCheck, Fact
from gavel.v1.observation_pb2 import Observation
from gavel.v1.proposal_pb2 import Proposal
from gavel.v1.tool_pb2 import ToolCall, ToolResult
from gavel_rules.commands import ActivateRuleSet, DeployRuleSet, RuleSetPosition
from gavel_rules.limits import IDEMPOTENCY_WINDOW_MS_DEFAULT
from gavel_rules.values import python_to_value
from gavel_server.bus.registry import BUS_DEFAULT, BusNames, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.intake.event_ids import new_event_id
from gavel_server.log import EventLog
from gavel_server.log.memory import MemoryLog
from gavel_server.process.clock import GuardedClock
from gavel_server.rpc.identity.access import AccessControl
from gavel_server.rpc.identity.access_refusals import AccessRefusals
from gavel_server.rpc.identity.closed_grants import ClosedGrants
from gavel_server.rpc.interceptor import Interceptor
from gavel_server.services.registration import register_services
from google.protobuf.struct_pb2 import Struct
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from tests.support.driver import compile_cached
from tests.support.hashes import sha256_of

START_MS: Final = 1_700_000_000_000
AGENT: Final = Producer(type=common_pb2.PRODUCER_TYPE_AGENT, id="agent-1", version="1")
ORDERS: Final = Producer(type=common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT, id="orders-db", version="1")
EXECUTOR: Final = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="payments", version="1")

RULE_SET: Final = """
gavel: v1
rule_set: refunds
version: 1
actions:
  refund.create:
    params:
      type: object
      required: [amount]
      additionalProperties: false
      properties: {amount: {type: number}}
    facts:
      status: {key: order.status, type: string, max_age_ms: 60000, sources: [orders-db]}
    decision_ttl_ms: 60000
    rejection_limit: 3
    retry: {max_attempts: 2}
rules:
  - {id: cancelled, action: refund.create, priority: 9, when: 'facts.status == "cancelled"', effect: reject, reason_code: ORDER_CANCELLED}
  - {id: large, action: refund.create, priority: 5, when: 'params.amount > 1000', effect: review, reason_code: LARGE_REFUND}
  - {id: small, action: refund.create, priority: 1, when: 'params.amount <= 100', effect: approve}
"""


class Clock:
    """The wall clock of a world."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        return self.now_ms


class Refusal(NamedTuple):
    """An error as the caller gets it. The reason has no prefix; a retry delay of 0 means none."""

    code: grpc.StatusCode
    reason: str
    fields: list[str]
    message: str
    retry_after_ms: int
    descriptions: list[str]


class World:
    """A server and the stubs of a client of it. `open_log` makes the log of a bus."""

    def __init__(self, channel: grpc.aio.Channel, address: str, buses: BusRegistry, clock: Clock, access: AccessControl) -> None:
        self.channel = channel
        self.access = access
        self.refusals = access.refusals
        self.address = address
        self.buses = buses
        self.clock = clock
        self.administration = administration_service_pb2_grpc.AdministrationServiceStub(channel)
        self.arbitration = arbitration_service_pb2_grpc.ArbitrationServiceStub(channel)
        self.audits = audit_service_pb2_grpc.AuditServiceStub(channel)
        self.events = event_service_pb2_grpc.EventServiceStub(channel)
        self.executions = execution_service_pb2_grpc.ExecutionServiceStub(channel)
        self.rule_sets = rule_set_service_pb2_grpc.RuleSetServiceStub(channel)
        self.projections = projection_service_pb2_grpc.ProjectionServiceStub(channel)
        self.proofs = proof_service_pb2_grpc.ProofServiceStub(channel)
        self.replays = replay_service_pb2_grpc.ReplayServiceStub(channel)
        self.tools = tool_service_pb2_grpc.ToolServiceStub(channel)

    async def head(self) -> int:
        """Return the last sequence number of the default bus's log."""
        return (await (await self.buses.open("")).log.head()).sequence_number

    async def call_bytes(self, method: str, data: bytes) -> bytes:
        """Call a method with raw request bytes; return the response bytes."""
        call: Any = self.channel.unary_unary(f"/gavel.v1.{method}")
        return bytes(await call(data))

    async def deploy(self, document: str = RULE_SET) -> int:
        """Deploy a rule set without the compiler's child process; return its sequence number."""
        deployed = await (await self.buses.open("")).execute(DeployRuleSet(new_event_id(), compile_cached(document), document))
        assert isinstance(deployed.answer, RuleSetPosition)
        return deployed.answer.sequence_number

    async def activate(self, document: str = RULE_SET) -> None:
        """Deploy and activate a rule set without the compiler's child process."""
        await self.deploy(document)
        rule_set = compile_cached(document)
        command = ActivateRuleSet(new_event_id(), rule_set.policy_id, rule_set.version, None)
        await (await self.buses.open("")).execute(command)

    async def publish(self, envelope: Envelope) -> Envelope:
        """Publish an event and return it as recorded."""
        return (await self.events.PublishEvent(PublishEventRequest(envelope=envelope))).envelope

    async def propose(self, envelope: Envelope) -> Envelope:
        """Submit a proposal and return its decision's envelope."""
        return (await self.arbitration.SubmitProposal(SubmitProposalRequest(envelope=envelope))).decision

    async def approve(self, subject: str = "order/1", amount: float = 10.0) -> Envelope:
        """Publish a fact about a subject, propose on it, and return the approval."""
        event = await self.publish(fact(subject, "order.status", "delivered"))
        return await self.propose(proposal(subject, amount=amount, cites=[event]))

    async def begin(self, decision: Envelope, producer: Producer = EXECUTOR, lease_ms: int = 0) -> BeginExecutionResponse:
        """Begin a decision's execution."""
        request = BeginExecutionRequest(decision_id=decision.event_id, producer=producer, lease_ms=lease_ms)
        return await self.executions.BeginExecution(request)

    async def report(self, envelope: Envelope) -> Envelope:
        """Report an execution and return the recorded event."""
        return (await self.executions.ReportExecution(ReportExecutionRequest(envelope=envelope))).envelope


OpenLog = Callable[[str, Clock], Awaitable[EventLog]]


async def open_memory_log(bus: str, clock: Clock) -> EventLog:
    """Return an empty log in memory."""
    return MemoryLog(bus, clock)


@asynccontextmanager
async def running_world(
    open_log: OpenLog = open_memory_log,
    clock: Clock | None = None,
    interceptor: Interceptor | None = None,
    admins: Sequence[str] = (),
    names: BusNames | None = None,
    *,
    tells_grants: bool = True,
) -> AsyncIterator[World]:
    """Serve on a free port of the loopback interface; stop with the block. `interceptor` may identify callers.

    `names` lists the buses of the log store; default: those that are open. `tells_grants`: a log tells its grants without being opened.
    """
    clock = clock or Clock()

    async def exists(name: str) -> bool:
        log = await open_log(name, clock)
        head = await log.head()
        await log.close()
        return head.sequence_number > 0

    async def open_bus(name: str) -> Sequencer:
        sequencer = Sequencer(
            await open_log(name, clock),
            GuardedClock(clock, clock),
            cross_check=CrossCheck(mode=fact_pb2.CROSS_CHECK_MODE_ALWAYS),
            idempotency_window_ms=IDEMPOTENCY_WINDOW_MS_DEFAULT,
        )
        await sequencer.start(opens=interceptor is None or name == BUS_DEFAULT)
        return sequencer

    async def grants_number(name: str) -> int | None:
        log = await open_log(name, clock)
        is_known = tells_grants and isinstance(log, MemoryLog) and (await log.head()).sequence_number > 0
        return log.grants_number if is_known and isinstance(log, MemoryLog) else None

    async def envelope(name: str, sequence_number: int) -> bytes | None:
        records = await (await open_log(name, clock)).read_many([sequence_number])
        return records[sequence_number].envelope if records else None

    async def head_number(name: str) -> int | None:
        return (await (await open_log(name, clock)).head()).sequence_number or None

    buses = BusRegistry(open_bus, exists, names=names, head_number=head_number)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 16 * 1024 * 1024)])
    refusals = AccessRefusals(buses, monotonic=lambda: clock.now_ms / 1000)
    access = AccessControl(buses, admins, refusals, ClosedGrants(grants_number, envelope))
    register_services(server, interceptor or Interceptor(), buses, access=access)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield World(channel, f"127.0.0.1:{port}", buses, clock, access)
        await buses.stop()
    await server.stop(None)
    for sequencer in buses.all():
        await sequencer.log.close()


async def refusal(call: Awaitable[Any]) -> Refusal:
    """Await a call that must fail, and return its error."""
    with pytest.raises(grpc.aio.AioRpcError) as error_info:
        await call
    error = error_info.value
    status = rpc_status.from_call(error)  # type: ignore[arg-type]  # it reads the trailers, which this has
    assert status is not None, f"no details: {error.code()} {error.details()}"
    return refusal_of(status, error.code())


def refusal_of(status: Status, code: grpc.StatusCode | None = None) -> Refusal:
    """Return the error in a status, e.g. that of an item of a batch."""
    codes = {code.value[0]: code for code in grpc.StatusCode}
    info, bad_request, retry = ErrorInfo(), BadRequest(), RetryInfo()
    for detail in status.details:
        for message in (info, bad_request, retry):
            detail.Unpack(message)
    assert info.domain == "gavel"
    assert f"ERROR_REASON_{info.reason}" in ErrorReason.keys()  # noqa: SIM118  # not a dict
    return Refusal(
        code or codes[status.code],
        info.reason,
        [violation.field for violation in bad_request.field_violations],
        status.message,
        retry.retry_delay.seconds * 1000 + retry.retry_delay.nanos // 1_000_000,
        [violation.description for violation in bad_request.field_violations],
    )


# Envelopes as their producers send them


def raw(**fields: Any) -> Envelope:
    """Return an envelope with exactly these fields; messages in it may be dicts."""
    return Envelope(**fields)


def fact(subject: str, key: str, value: object, **fields: Any) -> Envelope:
    """Return a fact of the order database."""
    return Envelope(**{"subject": subject, "producer": ORDERS, "fact": Fact(key=key, value=python_to_value(value)), **fields})


def proposal(subject: str, *, amount: float = 10.0, cites: Sequence[Envelope] = (), **fields: Any) -> Envelope:
    """Return a proposal to refund, citing recorded events."""
    params = Struct()
    params.update({"amount": amount})
    payload = Proposal(
        action_type="refund.create",
        params=params,
        max_fact_age_ms=60_000,
        based_on_events=[EventReference(event_id=one.event_id, sequence_number=one.sequence_number) for one in cites],
    )
    return Envelope(**{"subject": subject, "producer": AGENT, "proposal": payload, **fields})


def tool_call(trace_id: str, tool: str = "fraud-mcp", execution_id: str = "", **fields: Any) -> Envelope:
    """Return a tool call."""
    return Envelope(
        **{"subject": "order/1", "trace_id": trace_id, "tool_call": ToolCall(tool_name=tool, execution_id=execution_id), **fields}
    )


def tool_result(trace_id: str, tool: str = "fraud-mcp", execution_id: str = "", **fields: Any) -> Envelope:
    """Return a tool result."""
    result = ToolResult(tool_name=tool, execution_id=execution_id, content_hash=sha256_of("1"))
    return Envelope(**{"subject": "order/1", "trace_id": trace_id, "tool_result": result, **fields})


def observation(subject: str, key: str, value: object, **fields: Any) -> Envelope:
    """Return an observation without evidence: the event that it refers to does not exist."""
    payload = Observation(source_tool="fraud-mcp", confidence=0.5, evidence_ref=some_uuid(), extracted_fields={key: python_to_value(value)})
    return Envelope(**{"subject": subject, "observation": payload, **fields})


def report(decision: Envelope, started: BeginExecutionResponse, status: ExecutionStatus.ValueType, **fields: Any) -> Envelope:
    """Return the report of an attempt."""
    execution = Execution(decision_id=decision.event_id, execution_id=started.started.execution_id, status=status)
    return Envelope(**{"producer": EXECUTOR, "execution": execution, **fields})


def some_uuid() -> str:
    """Return a new UUID."""
    return str(uuid.uuid4())

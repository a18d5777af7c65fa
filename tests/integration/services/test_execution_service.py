"""ExecutionService over real gRPC: leases, reports and their refusals."""

from __future__ import annotations

import grpc
import pytest
from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import REMEDY_CITE_AGAIN, REMEDY_NONE, REMEDY_WAIT
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ListEventsRequest
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, RenewExecutionRequest, ReportExecutionRequest
from gavel.v1.reason_code_pb2 import REASON_CODE_ALREADY_FINISHED, REASON_CODE_ALREADY_RUNNING, REASON_CODE_FACT_SUPERSEDED
from gavel_rules.derivation import derive

from tests.integration.services.world import AGENT, EXECUTOR, START_MS, World, fact, proposal, refusal, report, some_uuid

OTHER_EXECUTOR = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="other")
SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
FAILED = execution_pb2.EXECUTION_STATUS_FAILED


async def test_begin_leases_an_attempt_of_exactly_the_decision(world_with_rules: World) -> None:
    """Begin answers the attempt, its lease, and the decision as the log has it; STARTED is in the log with the decision's trace."""
    decision = await world_with_rules.approve()

    attempt = (await world_with_rules.begin(decision)).started

    assert attempt.attempt == 1
    assert attempt.lease_until.ToMilliseconds() == START_MS + 30_000
    assert attempt.decision == decision
    event = (await world_with_rules.events.ListEvents(ListEventsRequest(from_sequence_number=decision.sequence_number + 1))).envelopes[0]
    assert event.execution.execution_id == attempt.execution_id
    assert (event.subject, event.trace_id, event.causation_id) == (decision.subject, decision.trace_id, decision.event_id)


async def test_lifecycle_of_an_execution(world_with_rules: World) -> None:
    """Begin, renew, report and derived fact are in the log once; then the decision has ended and its key is free."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision, lease_ms=1_000)
    world_with_rules.clock.now_ms += 500
    renewal = await world_with_rules.executions.RenewExecution(
        RenewExecutionRequest(decision_id=decision.event_id, execution_id=attempt.started.execution_id, producer=EXECUTOR, lease_ms=2_000)
    )
    assert renewal.lease_until.ToMilliseconds() == START_MS + 2_500

    record = await world_with_rules.report(report(decision, attempt, SUCCESS))
    assert (record.execution.attempt, record.execution.will_retry) == (1, False)
    record.ClearField("chain_hash")
    decision.ClearField("chain_hash")
    (fact_envelope,) = derive(record, decision, None)
    event = await world_with_rules.publish(fact_envelope)

    assert event.fact.value.string_value == "SUCCESS"
    assert (await world_with_rules.begin(decision)).refusal.reason_code == "ALREADY_FINISHED"
    repetition = await world_with_rules.propose(
        proposal("order/1", cites=[await world_with_rules.publish(fact("order/1", "order.status", "delivered"))])
    )
    assert repetition.decision.outcome == decision_pb2.OUTCOME_APPROVED


async def test_ids_in_upper_case(world_with_rules: World) -> None:
    """Ids of decisions and requests may be in upper case: the same attempt is begun, renewed and reported, and recorded in lower case."""
    decision, request_id = await world_with_rules.approve(), some_uuid()
    upper = Envelope(event_id=decision.event_id.upper())
    begin = BeginExecutionRequest(decision_id=upper.event_id, producer=EXECUTOR, request_id=request_id.upper())
    attempt = await world_with_rules.executions.BeginExecution(begin)
    begin.decision_id, begin.request_id = decision.event_id, request_id
    assert attempt == await world_with_rules.executions.BeginExecution(begin)
    renewal = RenewExecutionRequest(
        decision_id=upper.event_id, execution_id=attempt.started.execution_id, producer=EXECUTOR, request_id=some_uuid().upper()
    )
    await world_with_rules.executions.RenewExecution(renewal)
    record = await world_with_rules.report(report(upper, attempt, SUCCESS, event_id=some_uuid().upper()))
    assert (decision.event_id, record.event_id) == (record.execution.decision_id, record.event_id.lower())
    (derived,) = derive(record, decision, None)
    derived.event_id, derived.fact.decision_id = derived.event_id.upper(), derived.fact.decision_id.upper()
    assert decision.event_id == (await world_with_rules.publish(derived)).fact.decision_id
    executions = (await world_with_rules.events.ListEvents(ListEventsRequest())).envelopes
    assert {decision.event_id} == {event.execution.decision_id for event in executions if event.HasField("execution")}


async def test_refusals_name_their_remedy(world_with_rules: World) -> None:
    """A refusal has its code as an enum and what can help: to wait for a lease, or nothing once the work is done."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision)
    running = (await world_with_rules.begin(decision)).refusal
    assert (REASON_CODE_ALREADY_RUNNING, [REMEDY_WAIT]) == (running.reason, [*running.remedy])
    assert 0 < running.retry_after_ms <= 30_000
    await world_with_rules.report(report(decision, attempt, SUCCESS))
    done = (await world_with_rules.begin(decision)).refusal
    assert (REASON_CODE_ALREADY_FINISHED, [REMEDY_NONE], 0) == (done.reason, [*done.remedy], done.retry_after_ms)


async def test_a_refused_start_is_refused_again_with_its_reason(world_with_rules: World) -> None:
    """A start that is refused because its evidence changed gets the same reason again: it was not carried out. So do other executors."""
    decision = await world_with_rules.approve()
    await world_with_rules.publish(fact("order/1", "order.status", "returned"))
    begin = BeginExecutionRequest(decision_id=decision.event_id, producer=EXECUTOR, request_id=some_uuid())
    first = (await world_with_rules.executions.BeginExecution(begin)).refusal
    assert (REASON_CODE_FACT_SUPERSEDED, [REMEDY_CITE_AGAIN]) == (first.reason, [*first.remedy])
    assert first == (await world_with_rules.executions.BeginExecution(begin)).refusal
    (aborted,) = [
        event for event in (await world_with_rules.events.ListEvents(ListEventsRequest())).envelopes if event.HasField("execution")
    ]
    for derived in derive(aborted, decision, None):
        await world_with_rules.publish(derived)
    last = (await world_with_rules.executions.BeginExecution(begin)).refusal
    assert (first.reason, first.remedy) == (last.reason, last.remedy)


async def test_refusals_to_begin_are_values(world_with_rules: World) -> None:
    """A decision that may not be executed is answered with the reason, and only an event that ends it is appended."""
    rejected = await world_with_rules.propose(
        proposal("order/9", cites=[await world_with_rules.publish(fact("order/9", "order.status", "cancelled"))])
    )
    assert (await world_with_rules.begin(rejected)).refusal.reason_code == "NOT_APPROVED"

    decision = await world_with_rules.approve()
    await world_with_rules.begin(decision)
    before = await world_with_rules.head()
    running = (await world_with_rules.begin(decision, producer=OTHER_EXECUTOR)).refusal
    assert (running.reason_code, running.retry_after_ms) == ("ALREADY_RUNNING", 30_000)
    assert running.message
    assert await world_with_rules.head() == before


async def test_superseded_fact_aborts_the_start(world_with_rules: World) -> None:
    """A fact that changed since the approval refuses the start with FACT_SUPERSEDED, which is an ABORTED event of the log."""
    decision = await world_with_rules.approve()
    await world_with_rules.publish(fact("order/1", "order.status", "returned"))

    refusal_value = (await world_with_rules.begin(decision)).refusal

    assert refusal_value.reason_code == "FACT_SUPERSEDED"
    last = (await world_with_rules.events.ListEvents(ListEventsRequest(from_sequence_number=await world_with_rules.head()))).envelopes[-1]
    assert (last.execution.status, last.execution.reason_code) == (execution_pb2.EXECUTION_STATUS_ABORTED, "FACT_SUPERSEDED")


async def test_expired_approval_is_not_begun(world_with_rules: World) -> None:
    """Every begin of an expired approval is refused as EXPIRED."""
    decision = await world_with_rules.approve()
    world_with_rules.clock.now_ms += 60_000

    for _ in range(2):
        assert (await world_with_rules.begin(decision)).refusal.reason_code == "EXPIRED"


async def test_takeover_after_the_lease(world_with_rules: World) -> None:
    """Once the lease has lapsed another executor gets the next attempt, and the first one's report becomes a diagnostic."""
    decision = await world_with_rules.approve()
    first = await world_with_rules.begin(decision, lease_ms=1_000)
    world_with_rules.clock.now_ms += 1_000

    second = await world_with_rules.begin(decision, producer=OTHER_EXECUTOR)
    diagnostic = await world_with_rules.report(report(decision, first, SUCCESS))

    assert second.started.attempt == 2
    assert diagnostic.agent_diagnostic.kind == "LateExecutionReport"
    assert diagnostic.agent_diagnostic.late_execution.execution.execution_id == first.started.execution_id


async def test_report_is_idempotent(world_with_rules: World) -> None:
    """The same report under one event_id is answered with the first one's event; another report under it is refused."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision)
    envelope = report(decision, attempt, SUCCESS, event_id=some_uuid())

    first = await world_with_rules.report(envelope)
    repetition = await world_with_rules.report(envelope)
    envelope.execution.status = FAILED
    problem = await refusal(world_with_rules.report(envelope))

    assert repetition == first
    assert problem.reason == "EVENT_ID_REUSED"


async def test_failed_attempt_with_attempts_left(world_with_rules: World) -> None:
    """The server says that a failed attempt will be retried, and the next Begin is the next attempt."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision)

    record = await world_with_rules.report(report(decision, attempt, FAILED))

    assert record.execution.will_retry
    assert (await world_with_rules.begin(decision)).started.attempt == 2


@pytest.mark.parametrize(
    ("request_", "code", "reason", "fields"),
    [
        (BeginExecutionRequest(), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", ["decision_id"]),
        (
            BeginExecutionRequest(decision_id="x", lease_ms=99),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            ["decision_id", "lease_ms"],
        ),
        (
            BeginExecutionRequest(decision_id=some_uuid(), lease_ms=86_400_001),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            ["lease_ms"],
        ),
        (
            BeginExecutionRequest(decision_id=some_uuid(), producer=Producer(id="white space")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
            ["producer.id"],
        ),
        (BeginExecutionRequest(decision_id=some_uuid(), producer=AGENT), grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED", []),
        (BeginExecutionRequest(decision_id=some_uuid()), grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND", []),
        (BeginExecutionRequest(decision_id=some_uuid(), bus="No"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", ["bus"]),
    ],
)
async def test_begin_errors(
    world_with_rules: World, request_: BeginExecutionRequest, code: grpc.StatusCode, reason: str, fields: list[str]
) -> None:
    """A Begin that is malformed, forged or of an unknown decision has its code of the error table, and appends nothing."""
    before = await world_with_rules.head()

    problem = await refusal(world_with_rules.executions.BeginExecution(request_))

    assert (problem.code, problem.reason, problem.fields) == (code, reason, fields)
    assert await world_with_rules.head() == before


async def test_begin_with_the_id_of_another_event(world_with_rules: World) -> None:
    """Begin with the id of an event other than a decision is DECISION_NOT_FOUND."""
    event = await world_with_rules.publish(fact("order/1", "order.status", "delivered"))

    assert (await refusal(world_with_rules.begin(event))).reason == "DECISION_NOT_FOUND"


async def test_renew_errors(world_with_rules: World) -> None:
    """Only the holder of a lease renews it, and only while it runs."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision, lease_ms=1_000)
    before = await world_with_rules.head()

    def renew(**fields: object) -> object:
        envelope: dict[str, object] = {"decision_id": decision.event_id, "execution_id": attempt.started.execution_id, "producer": EXECUTOR}
        return world_with_rules.executions.RenewExecution(RenewExecutionRequest(**{**envelope, **fields}))  # type: ignore[arg-type]

    async def reason(call: object) -> str:
        return (await refusal(call)).reason  # type: ignore[arg-type]

    assert await reason(renew(decision_id="x", execution_id="y", lease_ms=-1)) == "INVALID_REQUEST"
    assert await reason(renew(execution_id="exec_000000000000")) == "WRONG_STATE"
    assert await reason(renew(decision_id=some_uuid())) == "DECISION_NOT_FOUND"
    assert await reason(renew(producer=OTHER_EXECUTOR)) == "PRODUCER_NOT_ALLOWED"
    world_with_rules.clock.now_ms += 1_000
    assert await reason(renew()) == "WRONG_STATE"
    assert await world_with_rules.head() == before


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (lambda envelope: envelope.execution.ClearField("decision_id"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: envelope.execution.ClearField("execution_id"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: envelope.execution.ClearField("status"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (
            lambda envelope: setattr(envelope.execution, "status", execution_pb2.EXECUTION_STATUS_STARTED),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
        ),
        (lambda envelope: setattr(envelope.execution, "will_retry", True), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: setattr(envelope.execution, "attempt", 2), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: envelope.execution.result.update({"a": float("nan")}), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: envelope.execution.completed_steps.extend(["a"] * 257), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: setattr(envelope, "subject", "order/2"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: setattr(envelope, "trace_id", "another"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: envelope.fact.SetInParent(), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda envelope: envelope.producer.CopyFrom(AGENT), grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED"),
        (lambda envelope: envelope.producer.CopyFrom(OTHER_EXECUTOR), grpc.StatusCode.PERMISSION_DENIED, "PRODUCER_NOT_ALLOWED"),
        (lambda envelope: setattr(envelope.execution, "decision_id", some_uuid()), grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND"),
        (
            lambda envelope: setattr(envelope.execution, "execution_id", "exec_000000000000"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "WRONG_STATE",
        ),
    ],
    ids=range(15),
)
async def test_report_errors(world_with_rules: World, change: object, code: grpc.StatusCode, reason: str) -> None:
    """A report that is malformed, forged or of no running attempt has its code of the error table, and appends nothing."""
    decision = await world_with_rules.approve()
    envelope = report(decision, await world_with_rules.begin(decision), SUCCESS)
    before = await world_with_rules.head()
    change(envelope)  # type: ignore[operator]

    problem = await refusal(world_with_rules.executions.ReportExecution(ReportExecutionRequest(envelope=envelope)))

    assert (problem.code, problem.reason) == (code, reason)
    assert await world_with_rules.head() == before


async def test_second_report_of_an_attempt(world_with_rules: World) -> None:
    """An attempt that has been reported takes no second report: FAILED_PRECONDITION / WRONG_STATE."""
    decision = await world_with_rules.approve()
    attempt = await world_with_rules.begin(decision)
    await world_with_rules.report(report(decision, attempt, SUCCESS))

    assert (await refusal(world_with_rules.report(report(decision, attempt, SUCCESS)))).reason == "WRONG_STATE"


async def test_derived_fact_must_equal_the_derivation(world_with_rules: World) -> None:
    """A derived fact with another value is FAILED_PRECONDITION / DERIVATION_MISMATCH; the right one is recorded once."""
    decision = await world_with_rules.approve()
    record = await world_with_rules.report(report(decision, await world_with_rules.begin(decision), SUCCESS))
    for envelope in (record, decision):
        envelope.ClearField("chain_hash")
    (fact_envelope,) = derive(record, decision, None)
    forged = Envelope()
    forged.CopyFrom(fact_envelope)
    forged.fact.value.string_value = "FAILED"
    before = await world_with_rules.head()

    problem = await refusal(world_with_rules.publish(forged))
    assert (problem.code, problem.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "DERIVATION_MISMATCH")
    assert await world_with_rules.head() == before
    assert await world_with_rules.publish(fact_envelope) == await world_with_rules.publish(fact_envelope)
    assert await world_with_rules.head() == before + 1

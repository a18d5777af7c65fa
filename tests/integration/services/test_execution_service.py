"""ExecutionService over real gRPC: leases, reports and every way in which they are refused."""

from __future__ import annotations

import grpc
import pytest
from gavel.v1 import common_pb2, decision_pb2, execution_pb2
from gavel.v1.common_pb2 import Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ListEventsRequest
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, RenewExecutionRequest, ReportExecutionRequest
from gavel_rules.derivation import derive

from tests.integration.services.world import (
    AGENT,
    EXECUTOR,
    START_MS,
    World,
    fact,
    proposal,
    refusal,
    report,
    some_uuid,
)

OTHER_EXECUTOR = Producer(type=common_pb2.PRODUCER_TYPE_EXECUTOR, id="other")
SUCCESS = execution_pb2.EXECUTION_STATUS_SUCCESS
FAILED = execution_pb2.EXECUTION_STATUS_FAILED


async def test_begin_leases_an_attempt_of_exactly_the_decision(governed: World) -> None:
    """Begin answers the attempt, its lease, and the decision as the log has it; STARTED is in the log with the decision's trace."""
    decision = await governed.approve()

    started = (await governed.begin(decision)).started

    assert started.attempt == 1
    assert started.lease_until.ToMilliseconds() == START_MS + 30_000
    assert started.decision == decision
    event = (await governed.events.ListEvents(ListEventsRequest(from_sequence_number=decision.sequence_number + 1))).envelopes[0]
    assert event.execution.execution_id == started.execution_id
    assert (event.subject, event.trace_id, event.causation_id) == (decision.subject, decision.trace_id, decision.event_id)


async def test_whole_life_of_an_execution(governed: World) -> None:
    """Begin, renew, report, derived fact: each is in the log once, and then the decision is at its end and its key free."""
    decision = await governed.approve()
    begun = await governed.begin(decision, lease_ms=1_000)
    governed.clock.now_ms += 500
    renewed = await governed.executions.RenewExecution(
        RenewExecutionRequest(decision_id=decision.event_id, execution_id=begun.started.execution_id, producer=EXECUTOR, lease_ms=2_000)
    )
    assert renewed.lease_until.ToMilliseconds() == START_MS + 2_500

    reported = await governed.report(report(decision, begun, SUCCESS))
    assert (reported.execution.attempt, reported.execution.will_retry) == (1, False)
    reported.ClearField("chain_hash")
    decision.ClearField("chain_hash")
    (derived,) = derive(reported, decision, None)
    recorded = await governed.publish(derived)

    assert recorded.fact.value.string_value == "SUCCESS"
    assert (await governed.begin(decision)).refusal.reason_code == "ALREADY_FINISHED"
    again = await governed.propose(proposal("order/1", cites=[await governed.publish(fact("order/1", "order.status", "delivered"))]))
    assert again.decision.outcome == decision_pb2.OUTCOME_APPROVED


async def test_refusals_to_begin_are_values(governed: World) -> None:
    """A decision that may not be started is answered with its reason, and only what ends it is appended."""
    rejected = await governed.propose(proposal("order/9", cites=[await governed.publish(fact("order/9", "order.status", "cancelled"))]))
    assert (await governed.begin(rejected)).refusal.reason_code == "NOT_APPROVED"

    decision = await governed.approve()
    await governed.begin(decision)
    before = await governed.head()
    running = (await governed.begin(decision, producer=OTHER_EXECUTOR)).refusal
    assert (running.reason_code, running.retry_after_ms) == ("ALREADY_RUNNING", 30_000)
    assert running.message
    assert await governed.head() == before


async def test_superseded_fact_aborts_the_start(governed: World) -> None:
    """A fact that changed since the approval refuses the start with FACT_SUPERSEDED, which is an ABORTED event of the log."""
    decision = await governed.approve()
    await governed.publish(fact("order/1", "order.status", "returned"))

    refused = (await governed.begin(decision)).refusal

    assert refused.reason_code == "FACT_SUPERSEDED"
    last = (await governed.events.ListEvents(ListEventsRequest(from_sequence_number=await governed.head()))).envelopes[-1]
    assert (last.execution.status, last.execution.reason_code) == (execution_pb2.EXECUTION_STATUS_ABORTED, "FACT_SUPERSEDED")


async def test_approval_that_nobody_started_in_time(governed: World) -> None:
    """An approval that has expired is refused as EXPIRED, as often as somebody tries."""
    decision = await governed.approve()
    governed.clock.now_ms += 60_000

    for _ in range(2):
        assert (await governed.begin(decision)).refusal.reason_code == "EXPIRED"


async def test_takeover_after_the_lease(governed: World) -> None:
    """Once the lease has lapsed another executor gets the next attempt, and the first one's report becomes a diagnostic."""
    decision = await governed.approve()
    first = await governed.begin(decision, lease_ms=1_000)
    governed.clock.now_ms += 1_000

    second = await governed.begin(decision, producer=OTHER_EXECUTOR)
    late = await governed.report(report(decision, first, SUCCESS))

    assert second.started.attempt == 2
    assert late.agent_diagnostic.kind == "LateExecutionReport"
    assert late.agent_diagnostic.late_execution.execution.execution_id == first.started.execution_id


async def test_report_is_idempotent(governed: World) -> None:
    """The same report under one event_id is answered with the first one's event; another report under it is refused."""
    decision = await governed.approve()
    begun = await governed.begin(decision)
    sent = report(decision, begun, SUCCESS, event_id=some_uuid())

    first = await governed.report(sent)
    again = await governed.report(sent)
    sent.execution.status = FAILED
    heard = await refusal(governed.report(sent))

    assert again == first
    assert heard.reason == "EVENT_ID_REUSED"


async def test_failed_attempt_with_attempts_left(governed: World) -> None:
    """The server says that a failed attempt will be retried, and the next Begin is the next attempt."""
    decision = await governed.approve()
    begun = await governed.begin(decision)

    reported = await governed.report(report(decision, begun, FAILED))

    assert reported.execution.will_retry
    assert (await governed.begin(decision)).started.attempt == 2


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
    governed: World, request_: BeginExecutionRequest, code: grpc.StatusCode, reason: str, fields: list[str]
) -> None:
    """A Begin that is malformed, forged or about nothing has its code of the error table, and appends nothing."""
    before = await governed.head()

    heard = await refusal(governed.executions.BeginExecution(request_))

    assert (heard.code, heard.reason, heard.fields) == (code, reason, fields)
    assert await governed.head() == before


async def test_begin_of_an_event_that_is_no_decision(governed: World) -> None:
    """The id of an event that is no decision names no decision."""
    known = await governed.publish(fact("order/1", "order.status", "delivered"))

    assert (await refusal(governed.begin(known))).reason == "DECISION_NOT_FOUND"


async def test_renew_errors(governed: World) -> None:
    """A lease is renewed by its holder while it runs, and by nobody else and no later."""
    decision = await governed.approve()
    begun = await governed.begin(decision, lease_ms=1_000)
    before = await governed.head()

    def renew(**fields: object) -> object:
        sent: dict[str, object] = {"decision_id": decision.event_id, "execution_id": begun.started.execution_id, "producer": EXECUTOR}
        return governed.executions.RenewExecution(RenewExecutionRequest(**{**sent, **fields}))  # type: ignore[arg-type]

    async def reason(call: object) -> str:
        return (await refusal(call)).reason  # type: ignore[arg-type]

    assert await reason(renew(decision_id="x", execution_id="y", lease_ms=-1)) == "INVALID_REQUEST"
    assert await reason(renew(execution_id="exec_000000000000")) == "WRONG_STATE"
    assert await reason(renew(decision_id=some_uuid())) == "DECISION_NOT_FOUND"
    assert await reason(renew(producer=OTHER_EXECUTOR)) == "PRODUCER_NOT_ALLOWED"
    governed.clock.now_ms += 1_000
    assert await reason(renew()) == "WRONG_STATE"
    assert await governed.head() == before


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (lambda sent: sent.execution.ClearField("decision_id"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: sent.execution.ClearField("execution_id"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: sent.execution.ClearField("status"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (
            lambda sent: setattr(sent.execution, "status", execution_pb2.EXECUTION_STATUS_STARTED),
            grpc.StatusCode.INVALID_ARGUMENT,
            "INVALID_REQUEST",
        ),
        (lambda sent: setattr(sent.execution, "will_retry", True), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: setattr(sent.execution, "attempt", 2), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: sent.execution.result.update({"a": float("nan")}), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: sent.execution.completed_steps.extend(["a"] * 257), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: setattr(sent, "subject", "order/2"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: setattr(sent, "trace_id", "another"), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: sent.fact.SetInParent(), grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
        (lambda sent: sent.producer.CopyFrom(AGENT), grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED"),
        (lambda sent: sent.producer.CopyFrom(OTHER_EXECUTOR), grpc.StatusCode.PERMISSION_DENIED, "PRODUCER_NOT_ALLOWED"),
        (lambda sent: setattr(sent.execution, "decision_id", some_uuid()), grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND"),
        (
            lambda sent: setattr(sent.execution, "execution_id", "exec_000000000000"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "WRONG_STATE",
        ),
    ],
    ids=range(15),
)
async def test_report_errors(governed: World, change: object, code: grpc.StatusCode, reason: str) -> None:
    """A report that is malformed, forged or of no running attempt has its code of the error table, and appends nothing."""
    decision = await governed.approve()
    sent = report(decision, await governed.begin(decision), SUCCESS)
    before = await governed.head()
    change(sent)  # type: ignore[operator]

    heard = await refusal(governed.executions.ReportExecution(ReportExecutionRequest(envelope=sent)))

    assert (heard.code, heard.reason) == (code, reason)
    assert await governed.head() == before


async def test_second_report_of_an_attempt(governed: World) -> None:
    """An attempt that has been reported takes no second report: FAILED_PRECONDITION / WRONG_STATE."""
    decision = await governed.approve()
    begun = await governed.begin(decision)
    await governed.report(report(decision, begun, SUCCESS))

    assert (await refusal(governed.report(report(decision, begun, SUCCESS)))).reason == "WRONG_STATE"


async def test_derived_fact_must_be_what_the_server_derives(governed: World) -> None:
    """A derived fact with another value is FAILED_PRECONDITION / DERIVATION_MISMATCH; the right one is taken, twice for once."""
    decision = await governed.approve()
    reported = await governed.report(report(decision, await governed.begin(decision), SUCCESS))
    for envelope in (reported, decision):
        envelope.ClearField("chain_hash")
    (derived,) = derive(reported, decision, None)
    forged = Envelope()
    forged.CopyFrom(derived)
    forged.fact.value.string_value = "FAILED"
    before = await governed.head()

    heard = await refusal(governed.publish(forged))
    assert (heard.code, heard.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "DERIVATION_MISMATCH")
    assert await governed.head() == before
    assert await governed.publish(derived) == await governed.publish(derived)
    assert await governed.head() == before + 1

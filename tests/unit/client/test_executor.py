"""The executor runtime on a real Redis and real gRPC, against a stand-in for the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import (
    EXECUTION_STATUS_ABORTED,
    EXECUTION_STATUS_FAILED,
    EXECUTION_STATUS_PARTIAL,
    EXECUTION_STATUS_SUCCESS,
    EXECUTION_STATUS_TIMEOUT,
)
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, BeginExecutionResponse, ExecutionRefusal, ReportExecutionRequest
from gavel_client import executor as runtime
from gavel_client import lease
from gavel_client.client import GavelClient
from gavel_client.errors import HandlerError
from gavel_client.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers
from gavel_client.values import from_struct
from gavel_client.work_queue import DECISIONS

from tests.unit.client.fake_server import FakeExecutions, FakeServer, approved, refused
from tests.unit.client.redis_helpers import Queue, until, until_equal

ACTION = "refund.create"
GROUP = "executors"

Make = Callable[..., Executor]
Behaviour = Callable[[ExecutionContext], Any]


@pytest.fixture
async def queue(redis_url: str, bus: str) -> AsyncIterator[Queue]:
    """The decisions queue of the test's bus."""
    async with Queue.open(redis_url, bus, DECISIONS) as opened:
        yield opened


@pytest.fixture
def make(client: GavelClient, redis_url: str) -> Make:
    """Makes executors of ACTION (or another) with one handler."""

    def make_one(behaviour: Behaviour, *, action: str = ACTION, timeout_ms: int = 60_000, **options: Any) -> Executor:
        handlers = Handlers()
        handlers.action(action, timeout_ms=timeout_ms)(behaviour)
        return Executor(client, redis_url, handlers, producer_id="refunds", **{"min_idle_ms": 60, **options})

    return make_one


@asynccontextmanager
async def running(executor: Executor) -> AsyncIterator[None]:
    """Run an executor and stop it in the end."""
    task = asyncio.create_task(executor.run())
    try:
        yield
    finally:
        executor.stop()
        await asyncio.wait_for(task, 30)


async def succeed(_: ExecutionContext) -> HandlerResult:
    """Do nothing, successfully."""
    return HandlerResult.success()


async def carry_out(executor: Executor, queue: Queue) -> None:
    """Run the executor until the queue is empty."""
    async with running(executor):
        await until_equal(queue.ids, [])


def outcomes(executions: FakeExecutions) -> list[tuple[int, int]]:
    """(attempt, status) of every recorded report, in order."""
    return [(report.execution.attempt, report.execution.status) for report in executions.reports.values()]


async def test_success(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision is carried out as approved, reported with its result under its decision's subject and trace, and leaves the queue."""
    decision = approved(7, bus)
    executions.add(decision)
    await queue.add(decision)
    seen: list[ExecutionContext] = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        seen.append(context)
        return HandlerResult.success({"refund_id": "r-1", "amount": context.params["amount"]})

    await carry_out(make(refund, producer_version="2"), queue)
    (context,) = seen
    assert (decision.event_id, 1, "exec_000000000001") == (context.idempotency_key, context.attempt, context.execution_id)
    assert {"amount": 10, "currency": "EUR"} == context.params
    assert decision == context.decision
    (report,) = executions.reports.values()
    assert ("order/123", "trace-1", decision.event_id) == (report.subject, report.trace_id, report.causation_id)
    assert ("refunds", "2") == (report.producer.id, report.producer.version)
    execution = report.execution
    assert (decision.event_id, "exec_000000000001", 1, EXECUTION_STATUS_SUCCESS) == (
        execution.decision_id,
        execution.execution_id,
        execution.attempt,
        execution.status,
    )
    assert {"refund_id": "r-1", "amount": 10} == from_struct(execution.result)
    assert not execution.HasField("error")
    assert execution.started_at.ToNanoseconds() <= execution.finished_at.ToNanoseconds()
    assert 0 == await queue.pending(GROUP)


async def test_what_is_carried_out_is_what_the_server_says(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Whoever can write to Redis cannot change what is done: parameters are those that BeginExecution returned."""
    decision = approved(7, bus)
    executions.add(decision)
    forged = Envelope()
    forged.CopyFrom(decision)
    forged.decision.params["amount"] = 1_000_000
    await queue.add(forged)
    amounts = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        amounts.append(context.params["amount"])
        return HandlerResult.success()

    await carry_out(make(refund), queue)
    assert [10] == amounts


async def test_forged_action_runs_no_handler(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An entry that names an action of ours for a decision about another action runs nothing."""
    decision = approved(7, bus, action_type="order.delete")
    executions.add(decision)
    forged = Envelope()
    forged.CopyFrom(decision)
    forged.decision.action_type = ACTION
    await queue.add(forged)
    called = []

    async def refund(_: ExecutionContext) -> HandlerResult:
        called.append(1)
        return HandlerResult.success()

    executor = make(refund)
    async with running(executor):
        await until(lambda: executor.statistics.failed > 0)
    assert [] == called
    assert ["7-0"] == await queue.ids()


async def test_retries_as_the_server_says(executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer) -> None:
    """A failure that will be retried is attempted again, after the policy's pauses, until the attempts are used up."""
    decision = approved(7, bus, max_attempts=3)
    executions.add(decision)
    await queue.add(decision)
    begun_at: list[float] = []

    async def fail(_: ExecutionContext) -> HandlerResult:
        begun_at.append(time.monotonic())
        raise HandlerError("PSP_DOWN", "the payment provider is down")

    await carry_out(make(fail), queue)
    assert [(attempt, EXECUTION_STATUS_FAILED) for attempt in (1, 2, 3)] == outcomes(executions)
    assert {("PSP_DOWN", "the payment provider is down")} == {
        (report.execution.error.code, report.execution.error.message) for report in executions.reports.values()
    }
    # The policy's pauses, 20 ms and then min(40, 30) ms, of which jitter takes away half at most.
    assert begun_at[1] - begun_at[0] >= 0.01
    assert begun_at[2] - begun_at[1] >= 0.015
    assert 3 == len(server.requests["BeginExecution"])


async def test_success_after_a_failure(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A later attempt has the same idempotency key and may succeed."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    keys = []

    async def second_time(context: ExecutionContext) -> HandlerResult:
        keys.append(context.idempotency_key)
        return HandlerResult.success() if context.attempt == 2 else HandlerResult.timeout("PSP_SLOW")

    await carry_out(make(second_time), queue)
    assert [(1, EXECUTION_STATUS_TIMEOUT), (2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert [approved(7, bus).event_id] * 2 == keys


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (HandlerResult.partial(["charged"], "NO_MAIL", "mail failed"), EXECUTION_STATUS_PARTIAL),
        (HandlerResult.aborted("NOTHING_TO_DO"), EXECUTION_STATUS_ABORTED),
    ],
)
async def test_final_statuses(result: HandlerResult, status: int, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """PARTIAL and ABORTED are reported with what the handler says, and never retried."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def end(_: ExecutionContext) -> HandlerResult:
        return result

    await carry_out(make(end), queue)
    assert [(1, status)] == outcomes(executions)
    (report,) = executions.reports.values()
    assert list(result.completed_steps) == list(report.execution.completed_steps)
    assert (result.reason_code, result.error_code) == (report.execution.reason_code, report.execution.error.code)


async def test_exception_is_a_failure(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception is FAILED with its type and place; its text, and the parameters, reach neither log."""
    caplog.set_level(logging.DEBUG)
    decision = approved(7, bus, max_attempts=1)
    executions.add(decision)
    await queue.add(decision)

    async def break_down(context: ExecutionContext) -> HandlerResult:
        raise KeyError(f"card 4111 of {context.params['currency']}")

    await carry_out(make(break_down), queue)
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_FAILED, "HANDLER_EXCEPTION") == (report.execution.status, report.execution.error.code)
    assert report.execution.error.message.startswith("KeyError at test_executor.py:")
    assert "4111" not in caplog.text
    assert "EUR" not in caplog.text


@pytest.mark.parametrize("returned", [HandlerResult.success({"when": object()}), HandlerResult.success({"n": float("nan")}), None])
async def test_unusable_result_is_partial(returned: Any, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that is done and cannot say with what has done something: PARTIAL, never a failure without effect."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def return_it(_: ExecutionContext) -> Any:
        return returned

    await carry_out(make(return_it), queue)
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_PARTIAL, "INVALID_RESULT") == (report.execution.status, report.execution.error.code)


async def test_result_that_the_server_refuses_is_partial(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str
) -> None:
    """So is a result that is beyond the contract's limits: the violations go into the report."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    def report(request: ReportExecutionRequest) -> Any:
        if request.envelope.execution.HasField("result"):
            return refused(
                grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST", violations=[("envelope.execution.result", "is 17 levels deep")]
            )
        return executions.report(request)

    server.answers["ReportExecution"] = report

    async def refund(_: ExecutionContext) -> HandlerResult:
        return HandlerResult.success({"deep": 1})

    await carry_out(make(refund), queue)
    (recorded,) = executions.reports.values()
    assert (EXECUTION_STATUS_PARTIAL, "INVALID_RESULT") == (recorded.execution.status, recorded.execution.error.code)
    assert "envelope.execution.result: is 17 levels deep" in recorded.execution.error.message


async def test_plain_function_is_a_failure(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that is not a coroutine function is reported, not left to its lease."""
    decision = approved(7, bus, max_attempts=1)
    executions.add(decision)
    await queue.add(decision)
    await carry_out(make(lambda _: HandlerResult.success()), queue)
    assert [(1, EXECUTION_STATUS_FAILED)] == outcomes(executions)


async def test_handler_timeout(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that takes too long is cancelled and reported as TIMEOUT."""
    decision = approved(7, bus, max_attempts=1)
    executions.add(decision)
    await queue.add(decision)
    cancelled = []

    async def dawdle(_: ExecutionContext) -> HandlerResult:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return HandlerResult.success()

    await carry_out(make(dawdle, timeout_ms=20), queue)
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_TIMEOUT, "HANDLER_TIMEOUT") == (report.execution.status, report.execution.error.code)
    assert [1] == cancelled


async def test_cancelled_handler_may_say_what_it_did(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that answers its cancellation with a result is reported with that."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def half(_: ExecutionContext) -> HandlerResult:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return HandlerResult.partial(["charged"], "CUT_OFF")
        return HandlerResult.success()

    await carry_out(make(half, timeout_ms=20), queue)
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_PARTIAL, "CUT_OFF", ["charged"]) == (
        report.execution.status,
        report.execution.error.code,
        list(report.execution.completed_steps),
    )


async def test_handler_that_ignores_its_cancellation(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its attempt is reported as TIMEOUT all the same, but no other one begins here while it still runs."""
    monkeypatch.setattr(runtime, "CANCEL_GRACE_MS", 10)
    executions.add(approved(7, bus, max_attempts=2))
    await queue.add(approved(7, bus, max_attempts=2))
    go_on = asyncio.Event()
    running_now: list[int] = []

    async def stubborn(context: ExecutionContext) -> HandlerResult:
        assert [] == running_now
        running_now.append(context.attempt)
        while context.attempt == 1 and not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()
        running_now.clear()
        return HandlerResult.success()

    async with running(make(stubborn, timeout_ms=20)):
        await until(lambda: len(executions.reports) == 1)
        assert [1] == running_now
        assert 1 == len(server.requests["BeginExecution"])
        go_on.set()
        await until_equal(queue.ids, [])
    assert [(1, EXECUTION_STATUS_TIMEOUT), (2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_refused_report_is_loud(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A report that the server will not have is an error in the executor's log, and the decision is asked about again."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    def refuse(_: object) -> Any:
        known.ended = True
        return refused(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")

    server.answers["ReportExecution"] = refuse
    await carry_out(make(succeed), queue)
    assert "the report EXECUTION_STATUS_SUCCESS was refused: FAILED_PRECONDITION WRONG_STATE" in caplog.text


@pytest.fixture
def early_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renew after 30 ms of a lease of 30 s: soon enough for a test, without any danger that a slow machine loses the lease."""
    monkeypatch.setattr(lease, "RENEWAL_PART", 0.001)


@pytest.mark.usefixtures("early_renewals")
async def test_lease_is_renewed(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """While a handler works its lease is renewed, by the same producer, and nobody else may begin."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def until_renewed(_: ExecutionContext) -> HandlerResult:
        await until(lambda: len(server.requests["RenewExecution"]) >= 3)
        return HandlerResult.success()

    await carry_out(make(until_renewed), queue)
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    request = server.requests["RenewExecution"][0]
    assert ("exec_000000000001", "refunds", 30_000) == (request.execution_id, request.producer.id, request.lease_ms)


@pytest.mark.usefixtures("early_renewals")
async def test_refused_renewal_stops_the_handler(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str
) -> None:
    """When the lease is refused the handler is cancelled and nothing is reported; what follows, the server says."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    cancelled: list[int] = []

    def renew(_: object) -> Any:
        known.running = False
        known.refusal = "UNDER_REVIEW"
        return refused(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")

    server.answers["RenewExecution"] = renew

    async def dawdle(_: ExecutionContext) -> HandlerResult:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.append(1)
        return HandlerResult.success()

    async with running(make(dawdle)):
        await until(lambda: cancelled == [1])
        await until_equal(lambda: queue.pending(GROUP), 0)
    assert {} == executions.reports
    assert ["7-0"] == await queue.ids()


@pytest.mark.usefixtures("early_renewals")
async def test_unreachable_server_stops_the_handler_in_time(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor that cannot renew stops acting while its lease still holds, and carries on once the server lets it."""
    # Give the lease of 30 s up after 150 ms, so that no slow machine can stop too late.
    monkeypatch.setattr(lease, "STOPPING_PART", 0.995)
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    left_s: list[float] = []
    server.answers["RenewExecution"] = lambda _: refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")

    async def dawdle(context: ExecutionContext) -> HandlerResult:
        if context.attempt == 1:
            try:
                await asyncio.sleep(3600)
            finally:
                left_s.append(known.lease_until - time.monotonic())
                known.lease_until = 0.0
        return HandlerResult.success()

    await carry_out(make(dawdle), queue)
    assert left_s[0] > 0
    assert [(2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_result_of_a_lost_attempt_is_still_said(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A result that comes after another attempt has begun is reported; the server keeps it as late, and says what follows."""
    known = executions.add(approved(7, bus))
    await queue.add(approved(7, bus))

    async def overtaken(_: ExecutionContext) -> HandlerResult:
        known.attempt += 1
        known.refusal = "UNDER_REVIEW"
        return HandlerResult.success()

    async with running(make(overtaken)):
        await until(lambda: len(executions.reports) == 1)
        await until_equal(lambda: queue.pending(GROUP), 0)
    (report,) = executions.reports.values()
    assert "agent_diagnostic" == report.WhichOneof("payload")
    assert ["7-0"] == await queue.ids()


@pytest.mark.parametrize("reason_code", ["STALE_FACT", "FACT_SUPERSEDED", "EXPIRED", "ALREADY_FINISHED", "NOT_APPROVED"])
async def test_ended_decision_leaves_the_queue(reason_code: str, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision that has ended is not carried out, and deleted."""
    executions.add(approved(7, bus)).refusal = reason_code
    await queue.add(approved(7, bus))
    await carry_out(make(succeed), queue)
    assert {} == executions.reports


@pytest.mark.parametrize("reason_code", ["UNDER_REVIEW", "RETRY_FACTS_CHANGED"])
async def test_decision_with_a_person_is_acknowledged(
    reason_code: str, executions: FakeExecutions, queue: Queue, make: Make, bus: str
) -> None:
    """A decision that a person has to look at is not carried out, and not asked about again; it has not ended, so it is kept."""
    executions.add(approved(7, bus)).refusal = reason_code
    await queue.add(approved(7, bus))
    executor = make(succeed)
    async with running(executor):
        await until(lambda: executor.statistics.processed == 1)
        await until_equal(lambda: queue.pending(GROUP), 0)
    assert ["7-0"] == await queue.ids()
    assert {} == executions.reports


async def test_unknown_refusal_is_left_pending(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A refusal that this version does not know loses nothing: the decision is asked about again later."""
    known = executions.add(approved(7, bus))
    known.refusal = "SOMETHING_NEW"
    await queue.add(approved(7, bus))
    executor = make(succeed)
    async with running(executor):
        await until(lambda: executor.statistics.processed >= 2)
        known.refusal = ""
        await until_equal(queue.ids, [])
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_forgotten_decision_leaves_the_queue(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer
) -> None:
    """A decision whose id the bus has forgotten has ended: the log holds it at the entry's number."""
    executions.add(approved(7, bus))
    server.answers["BeginExecution"] = lambda _: refused(grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND")
    await queue.add(approved(7, bus))
    await carry_out(make(succeed), queue)
    assert {} == executions.reports


async def test_queue_of_another_log_is_left_alone(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An executor whose Redis and server do not belong together deletes nothing, trims nothing and says so."""
    other = approved(7, bus)
    other.event_id = other.decision.decision_id = str(uuid.uuid4())
    executions.add(approved(7, bus)).ended = True
    await queue.add(other)
    executor = make(succeed, look_interval_ms=1)
    async with running(executor):
        await until(lambda: executor.statistics.failed >= 2)
    assert ["7-0"] == await queue.ids()
    assert 1 == await queue.pending(GROUP)


async def test_unknown_action_is_left_for_others(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An action without a handler is neither begun nor lost, even where executors of different kinds share a group."""
    for number, action in ((1, "mail.send"), (2, ACTION)):
        executions.add(approved(number, bus, action_type=action))
        await queue.add(approved(number, bus, action_type=action))
    async with running(make(succeed)):
        await until_equal(queue.ids, ["1-0"])
    assert 1 == await queue.pending(GROUP)
    await carry_out(make(succeed, action="mail.send"), queue)
    assert 2 == len(executions.reports)


async def test_groups_of_different_kinds(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Executors with groups of their own each carry out what is theirs, also when one comes later; nothing stays behind."""
    for number, action in ((1, "mail.send"), (2, ACTION), (3, "mail.send")):
        executions.add(approved(number, bus, action_type=action))
        await queue.add(approved(number, bus, action_type=action))
    async with running(make(succeed, group="refunds")):
        await until_equal(queue.ids, ["1-0", "3-0"])
        async with running(make(succeed, action="mail.send", group="mail")):
            await until_equal(queue.ids, [])
            await until_equal(lambda: queue.pending("refunds"), 0)
    assert 3 == len(executions.reports)


async def test_trim(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """What ended without an executor leaves the queue too, as far as everything before it has ended."""
    for number in (1, 2, 3, 4):
        executions.add(approved(number, bus, action_type=ACTION if number == 2 else "mail.send"))
        await queue.add(approved(number, bus, action_type=ACTION if number == 2 else "mail.send"))
    executions.decisions[approved(1, bus).event_id].ended = True
    executions.decisions[approved(4, bus).event_id].ended = True
    async with running(make(succeed, look_interval_ms=5)):
        await until_equal(queue.ids, ["3-0", "4-0"])
        executions.decisions[approved(3, bus).event_id].ended = True
        await until_equal(queue.ids, [])


async def test_what_the_queue_has_lost_is_taken_up(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision that nobody has begun and that is in no queue is carried out all the same, if there is a handler for it."""
    executions.add(approved(7, bus))
    executions.add(approved(8, bus, action_type="mail.send"))
    executor = make(succeed, look_interval_ms=5)
    async with running(executor):
        await until(lambda: outcomes(executions) == [(1, EXECUTION_STATUS_SUCCESS)])
        await until(lambda: executor.statistics.processed == 1)
    assert not executions.decisions[approved(8, bus).event_id].attempt
    assert [] == await queue.ids()


async def test_what_is_under_way_is_not_taken_up(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """What an executor of another group has begun, and what this one is at work on, is left alone, however often it is seen."""
    elsewhere = executions.add(approved(6, bus))
    elsewhere.attempt, elsewhere.running, elsewhere.lease_until = 1, True, time.monotonic() + 60
    executions.add(approved(7, bus))
    go_on = asyncio.Event()
    begun = 0

    async def slow(_: ExecutionContext) -> HandlerResult:
        nonlocal begun
        begun += 1
        await go_on.wait()
        return HandlerResult.success()

    server = executions.server
    async with running(make(slow, look_interval_ms=2)):
        await until(lambda: begun == 1)
        looks = len(server.requests["ListPendingDecisions"])
        await until(lambda: len(server.requests["ListPendingDecisions"]) > looks + 5)
        go_on.set()
        await until(lambda: len(executions.reports) == 1)
    assert (1, 1) == (begun, len(server.requests["BeginExecution"]))


async def test_an_entry_that_turns_up_after_all(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An entry of what has been taken up already is no second start: it leaves the queue when its decision is over."""
    executions.add(approved(7, bus))
    go_on = asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow, look_interval_ms=2)
    async with running(executor):
        await until(lambda: executions.decisions[approved(7, bus).event_id].running)
        await queue.add(approved(7, bus))
        await until(lambda: executor.statistics.processed >= 1)
        assert ["7-0"] == await queue.ids()
        go_on.set()
        await until_equal(queue.ids, [])
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_nothing_is_taken_up_before_the_queue_is_read(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """While the queue has more than this executor can do, what waits is in it: the server is not asked to begin it out of turn."""
    for number in range(1, 6):
        executions.add(approved(number, bus))
        await queue.add(approved(number, bus))
    order: list[str] = []

    async def note(context: ExecutionContext) -> HandlerResult:
        order.append(context.idempotency_key)
        looks = len(executions.server.requests["ListPendingDecisions"])
        await until(lambda: len(executions.server.requests["ListPendingDecisions"]) > looks + 2)
        return HandlerResult.success()

    await carry_out(make(note, look_interval_ms=2, concurrency=1), queue)
    assert [approved(number, bus).event_id for number in range(1, 6)] == order


async def test_what_is_taken_up_touches_no_queue_of_another_log(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Where server and Redis do not belong together, an entry with the number of what is taken up is somebody else's."""
    other = approved(7, bus)
    other.event_id = other.decision.decision_id = str(uuid.uuid4())
    executions.add(approved(7, bus))
    await queue.add(other)
    executor = make(succeed, look_interval_ms=2)
    async with running(executor):
        await until(lambda: executor.statistics.failed >= 1)
        await until(lambda: outcomes(executions) == [(1, EXECUTION_STATUS_SUCCESS)])
    assert ["7-0"] == await queue.ids()


async def test_a_stop_waits_for_what_was_taken_up(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """What no entry has brought gets the same grace when the executor stops, and is reported."""
    executions.add(approved(7, bus))
    go_on = asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow, look_interval_ms=2)
    async with running(executor):
        await until(lambda: executions.decisions[approved(7, bus).event_id].running)
        executor.stop()
        go_on.set()
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_report_is_sent_once_in_effect(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A report whose answer is lost is sent again as the same event, which the log holds once."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    lost = 2

    def report(request: ReportExecutionRequest) -> Any:
        nonlocal lost
        answer = executions.report(request)
        if lost:
            lost -= 1
            return refused(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
        return answer

    server.answers["ReportExecution"] = report
    await carry_out(make(succeed), queue)
    sent = [request.envelope for request in server.requests["ReportExecution"]]
    assert 3 == len(sent)
    assert sent[0] == sent[1] == sent[2]
    assert 5 == uuid.UUID(sent[0].event_id).version
    assert 1 == len(executions.reports)


async def test_attempts_have_reports_of_their_own(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """The event_id of a report differs between attempts and between decisions."""
    for number in (1, 2):
        executions.add(approved(number, bus, max_attempts=2))
        await queue.add(approved(number, bus, max_attempts=2))

    async def fail(_: ExecutionContext) -> HandlerResult:
        return HandlerResult.failed("NO")

    await carry_out(make(fail), queue)
    assert 4 == len(executions.reports)


async def test_server_that_is_away(executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer) -> None:
    """Nothing begins while the server is away; once it is back, everything does, and no handler ran twice."""
    executions.add(approved(7, bus))
    away = 12
    ran: list[int] = []

    def begin(request: BeginExecutionRequest) -> Any:
        nonlocal away
        if away:
            away -= 1
            assert not ran
            return refused(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        return executions.begin(request)

    server.answers["BeginExecution"] = begin
    await queue.add(approved(7, bus))

    async def refund(_: ExecutionContext) -> HandlerResult:
        ran.append(1)
        return HandlerResult.success()

    await carry_out(make(refund), queue)
    assert [1] == ran


async def test_concurrency_limit(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """No more handlers run at once than allowed."""
    for number in range(1, 8):
        executions.add(approved(number, bus))
        await queue.add(approved(number, bus))
    active, most = 0, 0
    full = asyncio.Event()

    async def count(_: ExecutionContext) -> HandlerResult:
        nonlocal active, most
        active += 1
        most = max(most, active)
        if active == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.005)  # time for one too many to begin
        active -= 1
        return HandlerResult.success()

    await carry_out(make(count, concurrency=3), queue)
    assert 3 == most
    assert 7 == len(executions.reports)


async def test_stop_lets_handlers_end(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A stop waits for a running handler and its report, and begins nothing more."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        begun.set()
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow)
    async with running(executor):
        await asyncio.wait_for(begun.wait(), 10)
        executor.stop()
        go_on.set()
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert [] == await queue.ids()


async def test_stop_cuts_handlers_off(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that does not end within the grace is cancelled, and its attempt reported as TIMEOUT; others may go on with it."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    begun = asyncio.Event()

    async def endless(_: ExecutionContext) -> HandlerResult:
        begun.set()
        await asyncio.sleep(3600)
        return HandlerResult.success()

    executor = make(endless, stop_grace_ms=10)
    async with running(executor):
        await asyncio.wait_for(begun.wait(), 10)
        executor.stop()
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_TIMEOUT, "EXECUTOR_STOPPED") == (report.execution.status, report.execution.error.code)
    assert ["7-0"] == await queue.ids()
    await carry_out(make(succeed), queue)
    assert [(1, EXECUTION_STATUS_TIMEOUT), (2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_cancelled_run_reports_too(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Cancelling `run` cuts handlers off at once; their attempts do not go unsaid."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    begun = asyncio.Event()

    async def endless(_: ExecutionContext) -> HandlerResult:
        begun.set()
        await asyncio.sleep(3600)
        return HandlerResult.success()

    task = asyncio.create_task(make(endless).run())
    await asyncio.wait_for(begun.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(1, EXECUTION_STATUS_TIMEOUT)] == outcomes(executions)


async def test_running_elsewhere_is_waited_for(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An attempt that runs elsewhere under a lease is waited for; meanwhile other work goes on."""
    first, second = approved(1, bus), approved(2, bus)
    executions.add(first).attempt = 1
    executions.add(second)
    await queue.add(first, second)
    order: list[tuple[int, int]] = []

    def begin(request: BeginExecutionRequest) -> Any:
        if request.decision_id == first.event_id and not order:
            return BeginExecutionResponse(refusal=ExecutionRefusal(reason_code="ALREADY_RUNNING", retry_after_ms=1))
        return executions.begin(request)

    server.answers["BeginExecution"] = begin

    async def note(context: ExecutionContext) -> HandlerResult:
        order.append((context.decision.sequence_number, context.attempt))
        return HandlerResult.success()

    await carry_out(make(note, concurrency=1), queue)
    assert [(2, 1), (1, 2)] == order


async def test_killed_executor_is_taken_over(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, redis_url: str
) -> None:
    """An executor killed between STARTED and its report: another takes its entry over, waits for the lease, and ends it once."""
    executions.add(approved(7, bus))
    await queue.add(approved(7, bus))
    program = Path(__file__).with_name("executor_process.py")
    arguments = [server.target, redis_url, bus, "200", "1500"]
    doomed = await asyncio.create_subprocess_exec(sys.executable, str(program), *arguments, stdout=asyncio.subprocess.PIPE)
    assert doomed.stdout is not None
    assert b"begun 1\n" == await asyncio.wait_for(doomed.stdout.readline(), 30)
    os.kill(doomed.pid, signal.SIGKILL)
    await doomed.wait()
    attempts = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        attempts.append(context.attempt)
        return HandlerResult.success()

    executor = make(refund, min_idle_ms=200)
    await carry_out(executor, queue)
    assert [2] == attempts
    assert [(2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert executor.statistics.claimed >= 1


def test_executor_without_handlers(client: GavelClient, redis_url: str) -> None:
    """An executor that could carry out nothing is refused at once."""
    with pytest.raises(ValueError, match="at least one handler"):
        Executor(client, redis_url, Handlers(), producer_id="x")


def test_second_handler_of_an_action() -> None:
    """An action has one handler."""
    handlers = Handlers()
    handlers.action(ACTION)(succeed)
    with pytest.raises(ValueError, match="has a handler already"):
        handlers.action(ACTION)(succeed)
    assert ([ACTION], 1) == (list(handlers), len(handlers))

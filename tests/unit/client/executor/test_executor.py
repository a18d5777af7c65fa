"""The executor on a real Redis and real gRPC with a fake server: handlers and their reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
import uuid
from functools import partial
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
from gavel.v1.execution_service_pb2 import BeginExecutionRequest, ReportExecutionRequest
from gavel_client.executor import executor as runtime
from gavel_client.executor.executor import Executor
from gavel_client.handlers import ActionHandler, ExecutionContext, HandlerResult, Handlers
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, HandlerError
from gavel_client.values import from_struct

from tests.unit.client.executor_helpers import ACTION, GROUP, Make, carry_out, outcomes, running, succeed
from tests.unit.client.fake_server import FakeExecutions, FakeServer, approved_decision, refusal
from tests.unit.client.work_queues import SHORT_MS, WAIT_S, Queue, until, until_equal


async def test_success(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision is carried out as approved, reported with its result in its subject and trace, and deleted from the queue."""
    decision = approved_decision(7, bus)
    executions.add(decision)
    await queue.add(decision)
    contexts: list[ExecutionContext] = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        contexts.append(context)
        return HandlerResult.success({"refund_id": "r-1", "amount": context.params["amount"]})

    await carry_out(make(refund, producer_version="2"), queue)
    (context,) = contexts
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


async def test_a_lost_answer_costs_no_attempt(executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer) -> None:
    """If the answer to BeginExecution is lost, the executor repeats the request with its request_id and carries out the first attempt."""
    decision = approved_decision(7, bus, max_attempts=1)
    executions.add(decision)
    await queue.add(decision)
    lost = 3

    def begin(request: BeginExecutionRequest) -> Any:
        nonlocal lost
        response = executions.begin(request)
        if lost:
            lost -= 1
            return refusal(grpc.StatusCode.UNAVAILABLE)
        return response

    server.answers["BeginExecution"] = begin
    await carry_out(make(succeed), queue)
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert 1 == len({request.request_id for request in server.requests["BeginExecution"]})
    assert 0 == lost


async def test_forged_parameters_are_ignored(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """The handler gets the parameters of BeginExecution, so that a forged queue entry changes nothing."""
    decision = approved_decision(7, bus)
    executions.add(decision)
    forgery = Envelope()
    forgery.CopyFrom(decision)
    forgery.decision.params["amount"] = 1_000_000
    await queue.add(forgery)
    amounts = []

    async def refund(context: ExecutionContext) -> HandlerResult:
        amounts.append(context.params["amount"])
        return HandlerResult.success()

    await carry_out(make(refund), queue)
    assert [10] == amounts


async def test_forged_action_runs_no_handler(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A queue entry with another action type than its decision's runs no handler."""
    decision = approved_decision(7, bus, action_type="order.delete")
    executions.add(decision)
    forgery = Envelope()
    forgery.CopyFrom(decision)
    forgery.decision.action_type = ACTION
    await queue.add(forgery)
    called = []

    async def refund(_: ExecutionContext) -> HandlerResult:
        called.append(1)
        return HandlerResult.success()

    executor = make(refund)
    async with running(executor):
        await until(lambda: executor.statistics.failed > 0)
    assert [] == called
    assert ["7-0"] == await queue.ids()


async def test_retries_follow_the_server(executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer) -> None:
    """A retryable failure is attempted again, after the policy's pauses, until max_attempts."""
    decision = approved_decision(7, bus, max_attempts=3)
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
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    keys = []

    async def second_time(context: ExecutionContext) -> HandlerResult:
        keys.append(context.idempotency_key)
        return HandlerResult.success() if context.attempt == 2 else HandlerResult.timeout("PSP_SLOW")

    await carry_out(make(second_time), queue)
    assert [(1, EXECUTION_STATUS_TIMEOUT), (2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert [approved_decision(7, bus).event_id] * 2 == keys


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (HandlerResult.partial(["charged"], "NO_MAIL", "mail failed"), EXECUTION_STATUS_PARTIAL),
        (HandlerResult.aborted("NOTHING_TO_DO"), EXECUTION_STATUS_ABORTED),
    ],
)
async def test_final_statuses(result: HandlerResult, status: int, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """PARTIAL and ABORTED are reported with the handler's details and never retried."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

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
    """An exception is reported as FAILED with type and place; its text and the parameters appear in no log."""
    caplog.set_level(logging.DEBUG)
    decision = approved_decision(7, bus, max_attempts=1)
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


async def test_handler_that_exits(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that calls sys.exit fails; the executor continues."""
    decision = approved_decision(7, bus, max_attempts=2)
    executions.add(decision)
    await queue.add(decision)

    async def give_up(context: ExecutionContext) -> HandlerResult:
        if context.attempt == 1:
            sys.exit(3)
        return HandlerResult.success()

    await carry_out(make(give_up), queue)
    assert [(1, EXECUTION_STATUS_FAILED), (2, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)
    assert next(iter(executions.reports.values())).execution.error.message.startswith("SystemExit at test_executor.py:")


async def test_plain_function_that_raises_stop_iteration(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A plain function that raises StopIteration, which no future can hold, fails like any other, with its place."""
    decision = approved_decision(7, bus, max_attempts=1)
    executions.add(decision)
    await queue.add(decision)

    def refund(_: ExecutionContext) -> HandlerResult:
        results: list[HandlerResult] = []
        return next(iter(results))

    await carry_out(make(refund), queue)
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_FAILED, "HANDLER_EXCEPTION") == (report.execution.status, report.execution.error.code)
    assert report.execution.error.message.startswith("RuntimeError at test_executor.py:")


class Closed(dict[str, object]):
    """A mapping that can no longer be read."""

    def items(self) -> Any:
        """Fail."""
        raise RuntimeError("the cursor 4711 is closed")


UNUSABLE: list[Any] = [
    HandlerResult.success({"when": object()}),
    HandlerResult.success({"n": float("nan")}),
    HandlerResult.success({"n": 10**400}),
    HandlerResult.success({"n": 10**5_000}),
    HandlerResult.success({"\ud800": object()}),
    HandlerResult.success(Closed(n=1)),
    HandlerResult.success("done"),  # type: ignore[arg-type]  # the mistake
    HandlerResult.partial(["paid"], {"paid": 30}),  # type: ignore[arg-type]  # the mistake
    None,
]


@pytest.mark.parametrize("returned", UNUSABLE)
async def test_unusable_result_is_partial(returned: Any, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that returns an unusable result is reported as PARTIAL, never as a failure without effect."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

    async def return_it(_: ExecutionContext) -> Any:
        return returned

    await carry_out(make(return_it), queue)
    (report,) = executions.reports.values()
    assert (EXECUTION_STATUS_PARTIAL, "INVALID_RESULT") == (report.execution.status, report.execution.error.code)
    assert "4711" not in report.execution.error.message


async def test_refused_result_is_partial(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A result that the server refuses is reported as PARTIAL, with the violations."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

    def report(request: ReportExecutionRequest) -> Any:
        if request.envelope.execution.HasField("result"):
            return refusal(
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


async def test_plain_function_counts(client: GavelClient, redis_url: str, executions: FakeExecutions, queue: Queue, bus: str) -> None:
    """The result of a plain function counts; it is not reported as a failure, which would be retried."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    acted: list[int] = []

    def refund(context: ExecutionContext) -> Any:
        acted.append(context.attempt)
        return HandlerResult.success()

    await carry_out(Executor(client, {ACTION: ActionHandler(refund, 60_000)}, redis_url=redis_url, producer_id="refunds"), queue)
    assert ([1], [(1, EXECUTION_STATUS_SUCCESS)]) == (acted, outcomes(executions))


def test_kinds_of_handlers() -> None:
    """Any callable is a handler: coroutine functions and objects run in the event loop, plain functions in threads."""

    class Refunds:
        async def __call__(self, _: ExecutionContext) -> HandlerResult:
            return HandlerResult.success()

    handlers = Handlers()
    handlers.action("as.object")(Refunds())
    handlers.action("as.partial")(partial(succeed))
    handlers.action("as.function")(lambda _: HandlerResult.success())
    in_event_loop = {name: handler.is_coroutine_function for name, handler in handlers.items()}
    assert {"as.object": True, "as.partial": True, "as.function": False} == in_event_loop
    with pytest.raises(TypeError, match=r"handler of refund.create is HandlerResult, not a function"):
        handlers.action(ACTION)(HandlerResult.success())  # type: ignore[type-var]  # the mistake


async def test_plain_function_runs_beside_the_event_loop(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A plain function blocks neither the event loop nor another one: two wait for each other, and a coroutine releases both."""
    for number in (7, 8):
        executions.add(approved_decision(number, bus))
        await queue.add(approved_decision(number, bus))
    both = threading.Barrier(3)

    def refund(_: ExecutionContext) -> HandlerResult:
        both.wait(WAIT_S)
        return HandlerResult.success()

    async with running(make(refund)):
        await asyncio.to_thread(both.wait, WAIT_S)
        await until_equal(queue.ids, [])
    assert [(1, EXECUTION_STATUS_SUCCESS)] * 2 == outcomes(executions)


async def test_plain_function_is_told_to_stop(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """At its timeout a plain function sees `context.cancelled`. What it returns then counts; if it raises, the attempt is a TIMEOUT."""
    results: dict[int, HandlerResult | Exception] = {7: HandlerResult.partial(["charged"], "STOPPED"), 8: ValueError("stopped")}
    for number in results:
        decision = approved_decision(number, bus, max_attempts=1)
        executions.add(decision)
        await queue.add(decision)
    remaining = dict(results)

    def refund(context: ExecutionContext) -> HandlerResult:
        assert context.cancellation.wait(WAIT_S)
        assert context.cancelled
        result = remaining.pop(min(remaining))
        if isinstance(result, Exception):
            raise result
        return result

    await carry_out(make(refund, timeout_ms=20), queue)
    reports = sorted((report.execution.status, report.execution.error.code) for report in executions.reports.values())
    assert sorted([(EXECUTION_STATUS_PARTIAL, "STOPPED"), (EXECUTION_STATUS_TIMEOUT, "HANDLER_TIMEOUT")]) == reports


async def test_handler_timeout(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that exceeds its timeout is cancelled and reported as TIMEOUT."""
    decision = approved_decision(7, bus, max_attempts=1)
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


async def test_cancelled_handler_may_return_a_result(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A handler that returns a result on cancellation is reported with that result."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

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
    """A handler that ignores its cancellation is reported as TIMEOUT; no further attempt begins while it runs."""
    monkeypatch.setattr(runtime, "CANCEL_GRACE_MS", 10)
    executions.add(approved_decision(7, bus, max_attempts=2))
    await queue.add(approved_decision(7, bus, max_attempts=2))
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


async def test_no_attempt_begins_beside_one_whose_report_was_refused(
    server: FakeServer, client: GavelClient, executions: FakeExecutions, make: Make, bus: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """An attempt whose report is refused does not end before its handler, which ignores its cancellation."""
    monkeypatch.setattr(runtime, "CANCEL_GRACE_MS", 10)
    executions.add(approved_decision(7, bus))
    server.answers["ReportExecution"] = lambda _: refusal(grpc.StatusCode.PERMISSION_DENIED, "RIGHT_LACKING")
    go_on = asyncio.Event()

    async def stubborn(_: ExecutionContext) -> HandlerResult:
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()
        return HandlerResult.success()

    executor = make(stubborn, timeout_ms=20)
    begun = await client.begin_execution(approved_decision(7, bus).event_id, producer=executor._producer, lease_ms=60_000)
    attempt = asyncio.create_task(executor._attempt(begun.started, time.monotonic()))
    try:
        await until(lambda: "the report EXECUTION_STATUS_TIMEOUT was refused" in caplog.text)
        for _ in range(100):  # more steps of the event loop than the end of an attempt takes
            await asyncio.sleep(0)
        assert not attempt.done()
    finally:
        go_on.set()
    with pytest.raises(GavelError, match="PERMISSION_DENIED"):
        await attempt


async def test_refused_report_is_logged(
    server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused report is logged as an error, and the decision is tried again."""
    fake = executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))

    def refuse(_: object) -> Any:
        fake.ended = True
        return refusal(grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")

    server.answers["ReportExecution"] = refuse
    await carry_out(make(succeed, min_idle_ms=SHORT_MS), queue)
    assert "the report EXECUTION_STATUS_SUCCESS was refused: FAILED_PRECONDITION WRONG_STATE" in caplog.text


async def test_report_is_recorded_once(server: FakeServer, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A report is sent again as the same event after a lost response, so that the log holds it once."""
    executions.add(approved_decision(7, bus))
    await queue.add(approved_decision(7, bus))
    lost = 2

    def report(request: ReportExecutionRequest) -> Any:
        nonlocal lost
        answer = executions.report(request)
        if lost:
            lost -= 1
            return refusal(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
        return answer

    server.answers["ReportExecution"] = report
    await carry_out(make(succeed), queue)
    sent = [request.envelope for request in server.requests["ReportExecution"]]
    assert 3 == len(sent)
    assert sent[0] == sent[1] == sent[2]
    assert 5 == uuid.UUID(sent[0].event_id).version
    assert 1 == len(executions.reports)


async def test_reports_have_distinct_event_ids(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Reports of different attempts and decisions have different event_ids."""
    for number in (1, 2):
        executions.add(approved_decision(number, bus, max_attempts=2))
        await queue.add(approved_decision(number, bus, max_attempts=2))

    async def fail(_: ExecutionContext) -> HandlerResult:
        return HandlerResult.failed("NO")

    await carry_out(make(fail), queue)
    assert 4 == len(executions.reports)


def test_executor_without_handlers(client: GavelClient, redis_url: str) -> None:
    """An executor without handlers is an error."""
    with pytest.raises(ValueError, match="at least one handler"):
        Executor(client, Handlers(), redis_url=redis_url, producer_id="x")


def test_second_handler_of_an_action() -> None:
    """Registering a second handler for an action is an error."""
    handlers = Handlers()
    handlers.action(ACTION)(succeed)
    with pytest.raises(ValueError, match="already has a handler"):
        handlers.action(ACTION)(succeed)
    assert ([ACTION], 1) == (list(handlers), len(handlers))

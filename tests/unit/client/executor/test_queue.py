"""The executor and its work queue: which entries it takes, leaves and deletes."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any

import grpc
import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.execution_service_pb2 import BeginExecutionRequest
from gavel_client.handlers import ExecutionContext, HandlerResult

from tests.unit.client.executor_helpers import ACTION, GROUP, Make, carry_out, outcomes, running, succeed
from tests.unit.client.fake_server import FakeExecutions, FakeServer, approved_decision, refusal
from tests.unit.client.work_queues import SHORT_MS, Queue, until, until_equal


@pytest.mark.parametrize("reason_code", ["STALE_FACT", "FACT_SUPERSEDED", "EXPIRED", "ALREADY_FINISHED", "NOT_APPROVED"])
async def test_ended_decision_leaves_the_queue(reason_code: str, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision that has ended is not carried out; its entry is deleted."""
    executions.add(approved_decision(7, bus)).refusal = reason_code
    await queue.add(approved_decision(7, bus))
    await carry_out(make(succeed), queue)
    assert {} == executions.reports


@pytest.mark.parametrize("reason_code", ["UNDER_REVIEW", "RETRY_FACTS_CHANGED"])
async def test_decision_under_review_is_acknowledged(
    reason_code: str, executions: FakeExecutions, queue: Queue, make: Make, bus: str
) -> None:
    """The entry of a decision that awaits a person is acknowledged, not deleted, and the decision is not carried out."""
    executions.add(approved_decision(7, bus)).refusal = reason_code
    await queue.add(approved_decision(7, bus))
    executor = make(succeed)
    async with running(executor):
        await until(lambda: executor.statistics.processed == 1)
        await until_equal(lambda: queue.pending(GROUP), 0)
    assert ["7-0"] == await queue.ids()
    assert {} == executions.reports


@pytest.mark.parametrize("reason_code", ["EXECUTION_VERSION_MISMATCH", "SOMETHING_NEW"])
async def test_refusals_that_others_may_not_get(reason_code: str, executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """After a refusal of its versions, or an unknown one, the entry stays pending and the decision is tried again."""
    fake = executions.add(approved_decision(7, bus))
    fake.refusal = reason_code
    await queue.add(approved_decision(7, bus))
    executor = make(succeed, min_idle_ms=SHORT_MS)
    async with running(executor):
        await until(lambda: executor.statistics.processed >= 2)
        fake.refusal = ""
        await until_equal(queue.ids, [])
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_forgotten_decision_leaves_the_queue(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer
) -> None:
    """The entry of a decision whose id the bus has forgotten is deleted if the log holds the decision at its number."""
    executions.add(approved_decision(7, bus))
    server.answers["BeginExecution"] = lambda _: refusal(grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND")
    await queue.add(approved_decision(7, bus))
    await carry_out(make(succeed), queue)
    assert {} == executions.reports


async def test_queue_of_another_log_stays_unchanged(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An executor whose Redis and server belong to different logs deletes and trims nothing, and counts failures."""
    other = approved_decision(7, bus)
    other.event_id = other.decision.decision_id = str(uuid.uuid4())
    executions.add(approved_decision(7, bus)).ended = True
    await queue.add(other)
    executor = make(succeed, scan_interval_ms=1, min_idle_ms=SHORT_MS)
    async with running(executor):
        await until(lambda: executor.statistics.failed >= 2)
    assert ["7-0"] == await queue.ids()
    assert 1 == await queue.pending(GROUP)


async def test_unknown_action_is_left_for_others(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An action without a handler is left for other executors of the group, and logged once."""
    caplog.set_level(logging.INFO, "gavel_client.executor.executor")
    for number, action in ((1, "mail.send"), (2, "mail.send"), (3, ACTION)):
        executions.add(approved_decision(number, bus, action_type=action))
        await queue.add(approved_decision(number, bus, action_type=action))
    async with running(make(succeed)):
        await until_equal(queue.ids, ["1-0", "2-0"])
        await until_equal(lambda: queue.pending(GROUP), 2)
    lines = [message for message in caplog.messages if "no handler" in message]
    assert 1 == len(lines)
    assert lines[0].endswith("action=mail.send has no handler here; its entry stays pending for others")
    await carry_out(make(succeed, action="mail.send", min_idle_ms=SHORT_MS), queue)
    assert 3 == len(executions.reports)


async def test_groups_with_different_handlers(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Executors in different groups each carry out their actions, also if one starts later, and leave no entry."""
    for number, action in ((1, "mail.send"), (2, ACTION), (3, "mail.send")):
        executions.add(approved_decision(number, bus, action_type=action))
        await queue.add(approved_decision(number, bus, action_type=action))
    async with running(make(succeed, group="refunds", min_idle_ms=SHORT_MS)):
        await until_equal(queue.ids, ["1-0", "3-0"])
        async with running(make(succeed, action="mail.send", group="mail")):
            await until_equal(queue.ids, [])
            await until_equal(lambda: queue.pending("refunds"), 0)
    assert 3 == len(executions.reports)


async def test_trim(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Entries of decisions that ended without an executor are trimmed up to the oldest pending decision."""
    for number in (1, 2, 3, 4):
        executions.add(approved_decision(number, bus, action_type=ACTION if number == 2 else "mail.send"))
        await queue.add(approved_decision(number, bus, action_type=ACTION if number == 2 else "mail.send"))
    executions.decisions[approved_decision(1, bus).event_id].ended = True
    executions.decisions[approved_decision(4, bus).event_id].ended = True
    async with running(make(succeed, scan_interval_ms=5)):
        await until_equal(queue.ids, ["3-0", "4-0"])
        executions.decisions[approved_decision(3, bus).event_id].ended = True
        await until_equal(queue.ids, [])


async def test_lost_decision_is_carried_out(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """A decision whose entry is lost is carried out if it has a handler here."""
    executions.add(approved_decision(7, bus))
    executions.add(approved_decision(8, bus, action_type="mail.send"))
    executor = make(succeed, scan_interval_ms=5)
    async with running(executor):
        await until(lambda: outcomes(executions) == [(1, EXECUTION_STATUS_SUCCESS)])
        await until(lambda: executor.statistics.processed == 1)
    assert not executions.decisions[approved_decision(8, bus).event_id].attempt
    assert [] == await queue.ids()


async def test_decision_in_progress_is_not_begun_again(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Decisions in progress, here or elsewhere, are not begun again, however often a scan returns them."""
    other = executions.add(approved_decision(6, bus))
    other.attempt, other.running, other.lease_until = 1, True, time.monotonic() + 60
    executions.add(approved_decision(7, bus))
    go_on = asyncio.Event()
    begun = 0

    async def slow(_: ExecutionContext) -> HandlerResult:
        nonlocal begun
        begun += 1
        await go_on.wait()
        return HandlerResult.success()

    server = executions.server
    async with running(make(slow, scan_interval_ms=2)):
        await until(lambda: begun == 1)
        looks = len(server.requests["ListPendingDecisions"])
        await until(lambda: len(server.requests["ListPendingDecisions"]) > looks + 5)
        go_on.set()
        await until(lambda: len(executions.reports) == 1)
    assert (1, 1) == (begun, len(server.requests["BeginExecution"]))


async def test_entry_that_reappears(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """An entry that appears after its decision was begun starts nothing and is deleted when the decision ends."""
    executions.add(approved_decision(7, bus))
    go_on = asyncio.Event()

    async def slow(_: ExecutionContext) -> HandlerResult:
        await go_on.wait()
        return HandlerResult.success()

    executor = make(slow, scan_interval_ms=2, min_idle_ms=SHORT_MS)
    async with running(executor):
        await until(lambda: executions.decisions[approved_decision(7, bus).event_id].running)
        await queue.add(approved_decision(7, bus))
        await until(lambda: executor.statistics.processed >= 1)
        assert ["7-0"] == await queue.ids()
        go_on.set()
        await until_equal(queue.ids, [])
    assert [(1, EXECUTION_STATUS_SUCCESS)] == outcomes(executions)


async def test_unread_entries_are_not_lost(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """While the queue has unread entries, no decision counts as lost, and decisions begin in order."""
    for number in range(1, 6):
        executions.add(approved_decision(number, bus))
        await queue.add(approved_decision(number, bus))
    order: list[str] = []

    async def note(context: ExecutionContext) -> HandlerResult:
        order.append(context.idempotency_key)
        looks = len(executions.server.requests["ListPendingDecisions"])
        await until(lambda: len(executions.server.requests["ListPendingDecisions"]) > looks + 2)
        return HandlerResult.success()

    await carry_out(make(note, scan_interval_ms=2, concurrency=1), queue)
    assert [approved_decision(number, bus).event_id for number in range(1, 6)] == order


async def test_lost_decision_deletes_no_entry_of_another_log(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """If server and Redis belong to different logs, beginning a lost decision deletes no entry with its number."""
    other = approved_decision(7, bus)
    other.event_id = other.decision.decision_id = str(uuid.uuid4())
    executions.add(approved_decision(7, bus))
    await queue.add(other)
    executor = make(succeed, scan_interval_ms=2)
    async with running(executor):
        await until(lambda: executor.statistics.failed >= 1)
        await until(lambda: outcomes(executions) == [(1, EXECUTION_STATUS_SUCCESS)])
    assert ["7-0"] == await queue.ids()


async def test_server_that_is_away(executions: FakeExecutions, queue: Queue, make: Make, bus: str, server: FakeServer) -> None:
    """No attempt begins while the server is unavailable; afterwards each decision is carried out once."""
    executions.add(approved_decision(7, bus))
    away = 4
    ran: list[int] = []

    def begin(request: BeginExecutionRequest) -> Any:
        nonlocal away
        if away:
            away -= 1
            assert not ran
            return refusal(grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")
        return executions.begin(request)

    server.answers["BeginExecution"] = begin
    await queue.add(approved_decision(7, bus))

    async def refund(_: ExecutionContext) -> HandlerResult:
        ran.append(1)
        return HandlerResult.success()

    await carry_out(make(refund), queue)
    assert [1] == ran


async def test_concurrency_limit(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """At most `concurrency` handlers run at once."""
    for number in range(1, 8):
        executions.add(approved_decision(number, bus))
        await queue.add(approved_decision(number, bus))
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

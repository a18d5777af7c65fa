"""What an executor takes from its work queue, what it leaves there, and when an entry is gone for good."""

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

from tests.unit.client.executors import ACTION, GROUP, Make, carry_out, outcomes, running, succeed
from tests.unit.client.fake_server import FakeExecutions, FakeServer, approved, refused
from tests.unit.client.redis_helpers import SHORT_MS, Queue, until, until_equal


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
    executor = make(succeed, min_idle_ms=SHORT_MS)
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
    executor = make(succeed, look_interval_ms=1, min_idle_ms=SHORT_MS)
    async with running(executor):
        await until(lambda: executor.statistics.failed >= 2)
    assert ["7-0"] == await queue.ids()
    assert 1 == await queue.pending(GROUP)


async def test_unknown_action_is_left_for_others(
    executions: FakeExecutions, queue: Queue, make: Make, bus: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An action without a handler is neither begun nor lost, even where executors of different kinds share a group; it is said once."""
    caplog.set_level(logging.INFO, "gavel_client.executor")
    for number, action in ((1, "mail.send"), (2, "mail.send"), (3, ACTION)):
        executions.add(approved(number, bus, action_type=action))
        await queue.add(approved(number, bus, action_type=action))
    async with running(make(succeed)):
        await until_equal(queue.ids, ["1-0", "2-0"])
        await until_equal(lambda: queue.pending(GROUP), 2)
    said = [message for message in caplog.messages if "no handler" in message]
    assert 1 == len(said)
    assert said[0].endswith("action=mail.send has no handler here; left to others")
    await carry_out(make(succeed, action="mail.send", min_idle_ms=SHORT_MS), queue)
    assert 3 == len(executions.reports)


async def test_groups_of_different_kinds(executions: FakeExecutions, queue: Queue, make: Make, bus: str) -> None:
    """Executors with groups of their own each carry out what is theirs, also when one comes later; nothing stays behind."""
    for number, action in ((1, "mail.send"), (2, ACTION), (3, "mail.send")):
        executions.add(approved(number, bus, action_type=action))
        await queue.add(approved(number, bus, action_type=action))
    async with running(make(succeed, group="refunds", min_idle_ms=SHORT_MS)):
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

    executor = make(slow, look_interval_ms=2, min_idle_ms=SHORT_MS)
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

"""Work queues lose what has ended in the log, in a server of this process with a log in memory."""

from __future__ import annotations

import pytest
from gavel.v1.arbitration_service_pb2 import ResolveReviewRequest, RevokeDecisionRequest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_PARTIAL, EXECUTION_STATUS_SUCCESS
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel.v1.projection_service_pb2 import (
    PENDING_PHASE_APPROVED,
    PENDING_PHASE_AWAITING_FACTS,
    PENDING_PHASE_EXECUTING,
    ListPendingDecisionsRequest,
    ListPendingReviewsRequest,
    PendingPhase,
)
from gavel_server.log.work.protocol import ParkedEntry, QueueName
from gavel_server.process import time_slice
from gavel_server.work import items
from gavel_server.work.trimming import QueueTrimmer

from tests.integration.services.world import World, report
from tests.support.turns import other_turns


async def test_entries_of_ended_decisions_are_removed(world_with_rules: World) -> None:
    """A decision leaves its queue when it was executed or revoked, its executions only when its facts are derived."""
    world = world_with_rules
    sequencer = await world.buses.open("")
    work = sequencer.log.work
    done, lost, live = [await world.approve(f"order/{name}") for name in ("done", "lost", "live")]
    await world.report(report(done, await world.begin(done), EXECUTION_STATUS_SUCCESS))
    await world.begin(live)
    await world.arbitration.RevokeDecision(RevokeDecisionRequest(decision_id=lost.event_id, revoked_by="ann", reason="no longer wanted"))
    assert 3 == len(await work.numbers("decisions", 0, 9))
    assert 3 == len(await work.numbers("executions", 0, 9))
    await QueueTrimmer(sequencer).trim()
    assert [live.sequence_number] == await work.numbers("decisions", 0, 9)
    assert 3 == len(await work.numbers("executions", 0, 9))


async def test_an_attempt_that_a_person_granted_stays(world_with_rules: World) -> None:
    """The item of a DECISION that grants one more attempt stays until the decision has ended; that of the first approval goes."""
    world = world_with_rules
    sequencer = await world.buses.open("")
    work = sequencer.log.work
    approval = await world.approve("order/1")
    await world.report(report(approval, await world.begin(approval), EXECUTION_STATUS_PARTIAL))
    (review,) = (await world.projections.ListPendingReviews(ListPendingReviewsRequest())).reviews
    verdict = ResolveReviewRequest(decision_id=review.decision_id, verdict=REVIEW_VERDICT_APPROVE, reviewer="ada", reason="seen")
    grant = (await world.arbitration.ResolveReview(verdict)).decision
    await QueueTrimmer(sequencer).trim()
    assert [grant.sequence_number] == await work.numbers("decisions", 0, 9)
    assert [] == await lost_of(world)
    await work.remove("decisions", [grant.sequence_number])
    assert [approval.event_id] == await lost_of(world)


async def test_other_tasks_run_while_a_queue_is_trimmed(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """If looking at each live decision takes a slice's time, other tasks run after each of them."""
    approvals = [await world_with_rules.approve(f"order/{number}") for number in range(20)]
    sequencer = await world_with_rules.buses.open("")
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1.0)
    async with other_turns() as turns:
        await QueueTrimmer(sequencer).trim()
    assert turns.count >= len(approvals)
    assert len(approvals) == len(await sequencer.log.work.numbers("decisions", 0, 99))


@pytest.mark.parametrize(("decisions", "steps"), [(2, 1), (2, 20), (items.STEP_DECISIONS, items.CALL_STEPS)])
async def test_lost_work(world_with_rules: World, monkeypatch: pytest.MonkeyPatch, decisions: int, steps: int) -> None:
    """Only an item that its queue does not hold is lost: not one that is held, parked or discarded. A phase without lost items has none."""
    monkeypatch.setattr(items, "STEP_DECISIONS", decisions)
    monkeypatch.setattr(items, "CALL_STEPS", steps)
    world = world_with_rules
    work = (await world.buses.open("")).log.work
    approvals = [await world.approve(f"order/{number}") for number in range(5)]
    held, parked, discarded, lost, new = [approval.sequence_number for approval in approvals]
    await work.join("decisions", "g", "a")
    assert [held, parked, discarded] == [entry.sequence_number for entry in await work.take_new("decisions", "g", "a", 3)]
    for number in (parked, discarded):
        assert await work.park("decisions", "g", "a", ParkedEntry(number, "id", 1, "broken", 0))
    assert 1 == await work.discard_parked("decisions", "g", [discarded])
    assert [] == await lost_of(world)
    await work.remove("decisions", [lost])
    assert [approvals[3].event_id] == await lost_of(world)
    assert new in await work.numbers("decisions", 0, 9)

    done = await world.begin(approvals[0])
    await world.report(report(approvals[0], done, EXECUTION_STATUS_SUCCESS))
    assert [approvals[3].event_id] == await lost_of(world)
    await work.remove("executions", await work.numbers("executions", 0, 9))
    assert [approvals[0].event_id, approvals[3].event_id] == await lost_of(world)
    assert [approvals[0].event_id] == await lost_of(world, PENDING_PHASE_AWAITING_FACTS)
    await work.remove("decisions", await work.numbers("decisions", 0, 9))
    assert [one.event_id for one in approvals] == await lost_of(world)
    assert [one.event_id for one in approvals[1:]] == await lost_of(world, PENDING_PHASE_APPROVED)
    assert [] == await lost_of(world, PENDING_PHASE_EXECUTING)


async def test_what_changes_while_its_queue_is_read_is_not_lost(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that begins to execute between the read of the state and that of its queue is left out, although its item is missing."""
    world = world_with_rules
    work = (await world.buses.open("")).log.work
    beginning, lost = [await world.approve(f"order/{number}") for number in range(2)]
    await work.remove("decisions", [beginning.sequence_number, lost.sequence_number])
    read, begun = work.numbers, False

    async def begin_and_read(queue: QueueName, after: int, count: int) -> list[int]:
        nonlocal begun
        if not begun:
            begun = True
            await world.begin(beginning)
        return await read(queue, after, count)

    monkeypatch.setattr(work, "numbers", begin_and_read)
    assert [lost.event_id] == await lost_of(world)
    assert begun


async def test_a_page_of_lost_work_reads_no_more_of_the_queue_than_it_needs(
    world_with_rules: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that is lost whole is looked up once for all pages together, not once for each."""
    monkeypatch.setattr(items, "STEP_DECISIONS", 2)
    approvals = [await world_with_rules.approve(f"order/{number}") for number in range(10)]
    work = (await world_with_rules.buses.open("")).log.work
    await work.remove("decisions", await work.numbers("decisions", 0, 99))
    read, reads = work.numbers, 0

    async def count_reads(queue: QueueName, after: int, count: int) -> list[int]:
        nonlocal reads
        reads += 1
        return await read(queue, after, count)

    monkeypatch.setattr(work, "numbers", count_reads)
    assert [one.event_id for one in approvals] == await lost_of(world_with_rules)
    assert len(approvals) / 2 == reads


async def lost_of(world: World, *phases: PendingPhase.ValueType) -> list[str]:
    """Return the decisions whose work is lost, page by page."""
    decision_ids: list[str] = []
    request = ListPendingDecisionsRequest(lost_work=True, page_size=2, phases=phases)
    while True:
        page = await world.projections.ListPendingDecisions(request)
        decision_ids += [decision.decision_id for decision in page.decisions]
        request.page_token = page.next_page_token
        if not request.page_token:
            return decision_ids

"""WaitDecision on a real server: when it returns, with what, and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import (
    DECISION_PHASE_CLOSED,
    DECISION_PHASE_DECIDED,
    DECISION_PHASE_EXECUTED,
    DECISION_PHASE_UNSPECIFIED,
    DecisionPhase,
    ResolveReviewRequest,
    RevokeDecisionRequest,
    WaitDecisionRequest,
    WaitDecisionResponse,
)
from gavel.v1.decision_pb2 import OUTCOME_APPROVED, OUTCOME_NEEDS_HUMAN_REVIEW, OUTCOME_REJECTED, OUTCOME_REVOKED
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import EXECUTION_STATUS_FAILED, EXECUTION_STATUS_SUCCESS, ExecutionStatus
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from gavel_rules.derivation import derive
from gavel_rules.identity.principal import Principal
from gavel_server.errors import ServiceError
from gavel_server.fairness.callers import caller_of
from gavel_server.services.waits import commit_waits, decision_history
from google.protobuf.duration_pb2 import Duration

from tests.integration.services.world import World, fact, proposal, refusal, report, some_uuid

AT_ONCE = Duration()
LONG = Duration(seconds=60)


def wait(world: World, decision_id: str, phase: DecisionPhase.ValueType, timeout: Duration = LONG) -> Awaitable[WaitDecisionResponse]:
    """Call WaitDecision."""
    return world.arbitration.WaitDecision(WaitDecisionRequest(decision_id=decision_id, phase=phase, timeout=timeout))


async def review(world: World) -> Envelope:
    """Return the decision of a proposal that a person has to decide."""
    event = await world.publish(fact("order/1", "order.status", "delivered"))
    return await world.propose(proposal("order/1", amount=5000.0, cites=[event]))


async def resolve(world: World, decision_id: str, verdict: Any) -> Envelope:
    """Resolve a review; return the decision that follows."""
    request = ResolveReviewRequest(decision_id=decision_id, verdict=verdict, reviewer="ann", reason="seen")
    return (await world.arbitration.ResolveReview(request)).decision


async def begin_and_report(world: World, decision: Envelope, status: ExecutionStatus.ValueType) -> Envelope:
    """Carry out a decision; return the report."""
    return await world.report(report(decision, await world.begin(decision), status))


async def publish_derived(world: World, decision: Envelope, recorded: Envelope) -> None:
    """Publish the facts that follow from a report."""
    for derived in derive(recorded, decision, None):
        await world.publish(derived)


async def test_phases_of_an_approval(world_with_rules: World) -> None:
    """Each wait returns in the phase that it asks for, as soon as the report, and the derived facts, are in the log."""
    world = world_with_rules
    decision = await world.approve()
    at_once = await wait(world, decision.event_id, DECISION_PHASE_EXECUTED, AT_ONCE)
    assert (DECISION_PHASE_DECIDED, decision, False) == (at_once.phase, at_once.decision, at_once.HasField("execution"))
    executed = asyncio.ensure_future(wait(world, decision.event_id, DECISION_PHASE_EXECUTED))
    closed = asyncio.ensure_future(wait(world, decision.decision.proposal_id, DECISION_PHASE_CLOSED))
    recorded = await begin_and_report(world, decision, EXECUTION_STATUS_SUCCESS)
    assert WaitDecisionResponse(decision=decision, phase=DECISION_PHASE_EXECUTED, execution=recorded) == await executed
    assert not closed.done()
    await publish_derived(world, decision, recorded)
    expected = WaitDecisionResponse(decision=decision, phase=DECISION_PHASE_CLOSED, execution=recorded)
    assert expected == await closed
    # Long afterwards, by the log alone, and by the proposal.
    for _ in range(3):
        await world.publish(fact("order/2", "order.status", "delivered"))
    assert expected == await wait(world, decision.event_id, DECISION_PHASE_DECIDED)
    assert expected == await wait(world, decision.decision.proposal_id, DECISION_PHASE_CLOSED)


async def test_refusal_is_closed(world_with_rules: World) -> None:
    """A rejection is closed at once: nothing will be executed."""
    decision = await world_with_rules.propose(proposal("order/1"))
    assert OUTCOME_REJECTED == decision.decision.outcome
    expected = WaitDecisionResponse(decision=decision, phase=DECISION_PHASE_CLOSED)
    assert expected == await wait(world_with_rules, decision.event_id, DECISION_PHASE_CLOSED)


@pytest.mark.parametrize(
    ("verdict", "phase", "outcome"),
    [
        (REVIEW_VERDICT_APPROVE, DECISION_PHASE_DECIDED, OUTCOME_APPROVED),
        (REVIEW_VERDICT_REJECT, DECISION_PHASE_CLOSED, OUTCOME_REJECTED),
    ],
)
async def test_review_is_decided_by_its_verdict(world_with_rules: World, verdict: Any, phase: int, outcome: int) -> None:
    """A decision under review is undecided until the verdict; then the wait returns the decision that followed."""
    world = world_with_rules
    requested = await review(world)
    undecided = await wait(world, requested.event_id, DECISION_PHASE_DECIDED, AT_ONCE)
    assert (DECISION_PHASE_UNSPECIFIED, OUTCOME_NEEDS_HUMAN_REVIEW) == (undecided.phase, undecided.decision.decision.outcome)
    waiting = asyncio.ensure_future(wait(world, requested.decision.proposal_id, DECISION_PHASE_DECIDED))
    verdict_decision = await resolve(world, requested.event_id, verdict)
    answer = await waiting
    assert (phase, outcome, verdict_decision) == (answer.phase, answer.decision.decision.outcome, answer.decision)
    # Each decision of the history leads to the latest one.
    for decision_id in (requested.event_id, verdict_decision.event_id):
        assert answer == await wait(world, decision_id, DECISION_PHASE_DECIDED)


async def test_revocation_and_expiry_close(world_with_rules: World) -> None:
    """An approval that is revoked or expires is closed with the decision that ended it."""
    world = world_with_rules
    revoked = await world.approve()
    closed = asyncio.ensure_future(wait(world, revoked.event_id, DECISION_PHASE_EXECUTED))
    await world.arbitration.RevokeDecision(RevokeDecisionRequest(decision_id=revoked.event_id, revoked_by="ann", reason="no"))
    answer = await closed
    assert (DECISION_PHASE_CLOSED, OUTCOME_REVOKED) == (answer.phase, answer.decision.decision.outcome)
    expiring = await world.approve("order/2")
    world.clock.now_ms += 60_001
    answer = await wait(world, expiring.event_id, DECISION_PHASE_CLOSED)
    assert (DECISION_PHASE_CLOSED, expiring.event_id) == (answer.phase, answer.decision.decision.previous_decision_id)


async def test_execution_under_review_is_not_executed(world_with_rules: World) -> None:
    """When the attempts are used up and a person has to decide, the decision is not executed, and the review is the latest decision."""
    world = world_with_rules
    decision = await world.approve()
    for _ in range(2):
        recorded = await begin_and_report(world, decision, EXECUTION_STATUS_FAILED)
        await publish_derived(world, decision, recorded)
    answer = await wait(world, decision.event_id, DECISION_PHASE_EXECUTED, AT_ONCE)
    assert (DECISION_PHASE_DECIDED, "ATTEMPTS_EXHAUSTED") == (answer.phase, answer.decision.decision.reason_code)
    assert recorded == answer.execution
    waiting = asyncio.ensure_future(wait(world, decision.event_id, DECISION_PHASE_CLOSED))
    granted = await resolve(world, answer.decision.event_id, REVIEW_VERDICT_APPROVE)
    assert granted == (await wait(world, decision.event_id, DECISION_PHASE_DECIDED)).decision
    recorded = await begin_and_report(world, decision, EXECUTION_STATUS_SUCCESS)
    await publish_derived(world, decision, recorded)
    closed = await waiting
    assert (DECISION_PHASE_CLOSED, granted, recorded) == (closed.phase, closed.decision, closed.execution)
    assert closed == await wait(world, decision.event_id, DECISION_PHASE_CLOSED)


async def test_end_far_away_is_found(world_with_rules: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a decision is found behind more events than are read without a slot."""
    monkeypatch.setattr(decision_history, "NEAR_EVENTS_MAX", 3)
    world = world_with_rules
    decision = await world.approve()
    for number in range(20):
        await world.publish(fact(f"order/{number + 2}", "order.status", "delivered", trace_id=decision.trace_id))
    recorded = await begin_and_report(world, decision, EXECUTION_STATUS_SUCCESS)
    await publish_derived(world, decision, recorded)
    answer = await wait(world, decision.event_id, DECISION_PHASE_CLOSED)
    assert (DECISION_PHASE_CLOSED, recorded) == (answer.phase, answer.execution)


async def test_deadline_of_the_call_limits_the_wait(world_with_rules: World) -> None:
    """Without a timeout the answer comes before the call's deadline."""
    decision = await world_with_rules.approve()
    request = WaitDecisionRequest(decision_id=decision.event_id, phase=DECISION_PHASE_CLOSED)
    answer = await world_with_rules.arbitration.WaitDecision(request, timeout=3.0)
    assert DECISION_PHASE_DECIDED == answer.phase


async def test_invalid_requests(world_with_rules: World) -> None:
    """An id that is no UUID, an unknown phase and a timeout beyond 60 s are INVALID_ARGUMENT; an unknown id is NOT_FOUND."""
    error = await refusal(wait(world_with_rules, "order/1", 9, Duration(seconds=61)))  # type: ignore[arg-type]  # the mistake
    assert (grpc.StatusCode.INVALID_ARGUMENT, ["decision_id", "phase", "timeout"]) == (error.code, error.fields)
    published = await world_with_rules.publish(fact("order/1", "order.status", "delivered"))
    for unknown in (some_uuid(), published.event_id):
        error = await refusal(wait(world_with_rules, unknown, DECISION_PHASE_DECIDED))
        assert (grpc.StatusCode.NOT_FOUND, "DECISION_NOT_FOUND") == (error.code, error.reason)


async def test_waiting_calls_are_limited() -> None:
    """Beyond the limit for an address a call is refused with QUEUE_FULL; a caller that goes frees its place."""
    waits = commit_waits.CommitWaits(waits_max=10, caller_waits_max=2)
    with waits.place("192.0.2.1:1"), waits.place("192.0.2.1:2"):
        with pytest.raises(ServiceError, match="2 for each address"), waits.place("192.0.2.1:3"):
            pass
        with waits.place("192.0.2.2:1"):
            pass
    with waits.place("192.0.2.1:3"):
        pass


async def test_a_call_that_arrives_as_the_last_one_leaves(world_with_rules: World) -> None:
    """A call is answered although the last call before it leaves in the same turn of the event loop."""
    waits = commit_waits.CommitWaits()
    sequencer = await world_with_rules.buses.open("")
    async with asyncio.timeout(30):
        for _ in range(2):
            await waits.wait(sequencer, lambda _: True, 60)


async def test_callers_that_go_leave_nothing(world_with_rules: World) -> None:
    """A cancelled call stops waiting at once, on a bus on which nothing happens: it has no follower any more, and the call no place."""
    world = world_with_rules
    decision = await world.approve()
    sequencer = await world.buses.open("")
    calls = [asyncio.ensure_future(wait(world, decision.event_id, DECISION_PHASE_CLOSED)) for _ in range(20)]
    while not sequencer.replica.followers:  # noqa: ASYNC110  # until the calls wait
        await asyncio.sleep(0.001)
    for call in calls:
        call.cancel()
    async with asyncio.timeout(30):
        while sequencer.replica.followers:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_waits_count_by_principal() -> None:
    """The principals behind one address do not take each other's places."""
    waits = commit_waits.CommitWaits(waits_max=10, caller_waits_max=1)
    ann, bob = (caller_of("192.0.2.1:1", Principal(name, "jwt")) for name in ("ann", "bob"))
    with waits.place(ann), waits.place(bob), pytest.raises(ServiceError, match="1 for each address"), waits.place(ann):
        pass

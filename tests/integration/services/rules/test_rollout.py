"""Shadows and simulations over real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from gavel.v1 import decision_pb2, execution_pb2, fact_pb2
from gavel.v1.arbitration_service_pb2 import RevokeDecisionRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventRequest
from gavel.v1.projection_service_pb2 import GetStatusRequest
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.rule_set_service_pb2 import (
    ActivateRuleSetRequest,
    DeactivateRuleSetRequest,
    ListRuleSetsRequest,
    SimulateRuleSetRequest,
    SimulateRuleSetResponse,
)
from gavel_server.log import Record
from prometheus_client import REGISTRY

from tests.integration.services.world import RULE_SET, World, proposal, refusal, report

STRICTER = RULE_SET.replace("version: 1", "version: 2").replace("<= 100", "<= 10")
BROKEN = STRICTER.replace("params.amount > 1000", "params.amuont > 1000")


async def watch(world: World, version: int) -> int:
    """Make a deployed version a shadow and return the sequence number of that."""
    request = ActivateRuleSetRequest(policy_id="refunds", version=version, mode=fact_pb2.ACTIVATION_MODE_SHADOW)
    return (await world.rule_sets.ActivateRuleSet(request)).sequence_number


def differences_counted() -> float:
    """Return the metric of the rule set's shadows."""
    labels = {"bus": "default", "policy_id": "refunds"}
    return REGISTRY.get_sample_value("gavel_shadow_differences_total", labels) or 0.0


async def test_shadow_differences_are_recorded_and_counted(world: World) -> None:
    """A shadow changes no decision; the differences are in the log, the listings and the metric."""
    await world.activate()
    await world.deploy(STRICTER)
    number = await watch(world, 2)
    before = differences_counted()

    approved = await world.approve("order/1", amount=50)
    await world.approve("order/2", amount=5)

    assert approved.decision.outcome == decision_pb2.OUTCOME_APPROVED
    event = (await world.events.GetEvent(GetEventRequest(sequence_number=approved.sequence_number + 1))).envelope
    difference = event.agent_diagnostic.shadow_difference
    assert (difference.decision_id, difference.policy_version, difference.shadowed.reason_code) == (
        approved.event_id,
        2,
        "NO_RULE_MATCHED",
    )
    status = await world.projections.GetStatus(GetStatusRequest())
    rule_sets = (await world.rule_sets.ListRuleSets(ListRuleSetsRequest())).rule_sets
    for shadow in (*status.shadow_rule_sets, rule_sets[1]):
        assert (shadow.version, shadow.mode, shadow.activated_at_sequence_number) == (2, fact_pb2.ACTIVATION_MODE_SHADOW, number)
        assert (shadow.shadow_decisions, shadow.shadow_differences) == (2, 1)
    assert [(one.version, one.shadow_decisions) for one in status.active_rule_sets] == [(1, 0)]
    assert differences_counted() == before + 1
    verdict = [item async for item in world.replays.VerifyReplay(VerifyReplayRequest())][-1].verdict
    assert verdict.proved, verdict


async def test_end_of_a_shadow(world: World) -> None:
    """A shadow is ended by mode SHADOW, or by being put in force; the version in force cannot be its own shadow."""
    await world.activate()
    await world.deploy(STRICTER)
    own = await refusal(watch(world, 1))
    assert (own.code, own.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE")

    await watch(world, 2)
    ending = DeactivateRuleSetRequest(policy_id="refunds", mode=fact_pb2.ACTIVATION_MODE_SHADOW, expected_active_version=1)
    assert (await world.rule_sets.DeactivateRuleSet(ending)).sequence_number == await world.head()
    await watch(world, 2)
    await world.rule_sets.ActivateRuleSet(ActivateRuleSetRequest(policy_id="refunds", version=2, expected_active_version=1))

    status = await world.projections.GetStatus(GetStatusRequest())
    assert ([], [(2, 1)]) == (list(status.shadow_rule_sets), [(one.version, one.previous_version) for one in status.active_rule_sets])


async def simulate(world: World, document: str = STRICTER, **fields: int) -> list[SimulateRuleSetResponse]:
    """Return everything that a simulation streams."""
    request = SimulateRuleSetRequest(document=document, **fields)  # type: ignore[arg-type]
    return [response async for response in world.rule_sets.SimulateRuleSet(request)]


async def some_decisions(world: World) -> list[Envelope]:
    """Record two approvals, the first of which the stricter version refuses, and a rejection that both versions give."""
    await world.activate()
    return [
        await world.approve("order/1", amount=50),
        await world.approve("order/2", amount=5),
        await world.propose(proposal("order/3")),
    ]


async def test_simulation_lists_changed_decisions(world: World) -> None:
    """A simulation streams progress, each changed decision and the summary, and appends nothing."""
    changing, *_ = await some_decisions(world)
    head = await world.head()

    *rest, last = await simulate(world)

    (changed,) = [item.changed for item in rest if item.HasField("changed")]
    assert (changed.sequence_number, changed.recorded) == (changing.sequence_number, changing.decision)
    assert changed.simulated.reason_code == "NO_RULE_MATCHED"
    assert (last.summary.decisions, last.summary.changed, last.summary.replaced) == (3, 1, 3)
    assert dict(last.summary.transitions) == {"APPROVED->REJECTED": 1}
    assert [item.progress.sequence_number for item in rest if item.HasField("progress")] == [head, head]
    assert await world.head() == head


DERIVING = (
    RULE_SET
    + """
derivations:
  - {id: amount, version: 1, on: {action: refund.create, status: SUCCESS}, key: order.refunded, value: params.amount}
"""
)


async def test_simulation_lists_changed_facts(world: World) -> None:
    """A simulation streams each report from which the candidate derives another fact, with both sides, and counts them."""
    await world.activate(DERIVING)
    decision = await world.approve("order/1", amount=50)
    reported = await world.report(report(decision, await world.begin(decision), execution_pb2.EXECUTION_STATUS_SUCCESS))
    candidate = DERIVING.replace("version: 1", "version: 2", 1).replace("value: params.amount", "value: params.amount * 2.0")

    *rest, last = await simulate(world, candidate)

    (changed,) = [item.changed_facts for item in rest if item.HasField("changed_facts")]
    assert (reported.sequence_number, decision.event_id) == (changed.sequence_number, changed.decision_id)
    assert "refund.create" == changed.action_type
    assert [("order.refunded", "order/1", 50.0)] == [(one.key, one.subject, one.value.number_value) for one in changed.recorded]
    assert [("order.refunded", "order/1", 100.0)] == [(one.key, one.subject, one.value.number_value) for one in changed.simulated]
    assert (1, 0, 1, 1) == (last.summary.decisions, last.summary.changed, last.summary.reports, last.summary.changed_reports)


async def test_simulation_counts_decisions_of_people(world: World) -> None:
    """The summary counts the revocations and verdicts of the range, which stay as recorded."""
    await world.activate()
    approval = await world.approve("order/1", amount=5)
    revoking = RevokeDecisionRequest(decision_id=approval.event_id, revoked_by="ada", reason="mistake")
    await world.arbitration.RevokeDecision(revoking)

    (*_, last) = await simulate(world)
    (*_, until) = await simulate(world, to_sequence_number=approval.sequence_number)

    assert [(1, 0, 1), (1, 0, 0)] == [(one.summary.decisions, one.summary.changed, one.summary.human_decisions) for one in (last, until)]


async def test_simulation_of_a_range(world: World) -> None:
    """Only decisions of the range are listed and counted."""
    changing, *_ = await some_decisions(world)

    (*_, after) = await simulate(world, from_sequence_number=changing.sequence_number + 1)
    (*_, until) = await simulate(world, to_sequence_number=changing.sequence_number)

    assert [(2, 0), (1, 1)] == [(one.summary.decisions, one.summary.changed) for one in (after, until)]


async def test_invalid_simulations(world: World) -> None:
    """A candidate with mistakes and a range that the log does not hold are INVALID_ARGUMENT, each with its fields."""
    broken = await refusal(simulate(world, BROKEN))
    assert (broken.code, broken.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_RULE_SET")
    assert broken.fields[0].startswith("document:")
    assert (await refusal(simulate(world, from_sequence_number=-1))).fields == ["from_sequence_number"]
    assert (await refusal(simulate(world, to_sequence_number=9))).fields == ["to_sequence_number"]


async def test_simulations_share_the_slots_of_replays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's second simulation or replay at once is RESOURCE_EXHAUSTED; a cancelled call frees its slot."""
    await some_decisions(world)
    simulating = asyncio.Event()

    async def held(*_: object) -> None:
        simulating.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr("gavel_server.history.replay._range", held)
        call = asyncio.create_task(simulate(world))
        await simulating.wait()
    replay = world.replays.VerifyReplay(VerifyReplayRequest())
    assert (await refusal(replay.read())).reason == (await refusal(simulate(world))).reason == "QUEUE_FULL"
    call.cancel()

    async def served() -> list[SimulateRuleSetResponse]:
        while True:
            try:
                return await simulate(world)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.01)

    assert (await asyncio.wait_for(served(), 100))[-1].HasField("summary")


async def test_simulation_of_a_damaged_log_is_refused(world: World) -> None:
    """A simulation on a log with a broken chain is LOG_UNAVAILABLE, with what to do."""
    await some_decisions(world)
    records: list[Record] = (await world.buses.open("")).log._records  # type: ignore[attr-defined]  # what a forger would do
    records[3] = Record(4, records[3].envelope.replace(b"delivered", b"cancelled"), records[3].chain_hash)

    problem = await refusal(simulate(world))

    assert (problem.code, problem.reason) == (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE")
    assert "run gavel replay" in problem.message

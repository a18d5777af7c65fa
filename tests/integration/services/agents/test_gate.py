"""The gate of agent frameworks against a real server, at moments that a test chooses: calls while earlier work has not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ListEventsRequest
from gavel_client import GavelClient
from gavel_client.gate import Action, Allowed, Answer, Call, Finished, Gate, ToolActions
from gavel_client.handlers import HandlerResult
from gavel_rules.derivation import derive

from tests.integration.services.world import AGENT, RULE_SET, World, fact

TOOL = "refund"


def action(arguments: Mapping[str, Any]) -> Action:
    """Return the action of a call."""
    return Action("refund.create", "order/1", arguments, max_fact_age_ms=60_000)


@pytest.fixture
async def gate(world: World) -> Gate:
    """A gate for refunds, on a bus whose rules allow them."""
    await world.activate(RULE_SET)
    await world.publish(fact("order/1", "order.status", "delivered"))
    actions = ToolActions()
    actions.tool(TOOL)(action)
    return Gate(GavelClient(world.channel), actions, agent=AGENT.id, executor="tools")


def call(turn: str) -> Call:
    """Return the call of one turn of a conversation."""
    return Call(TOOL, {"amount": 10.0}, "conversation-1", turn)


async def events(world: World, payload: str) -> list[Envelope]:
    """Return the events of a bus with a payload."""
    page = await world.events.ListEvents(ListEventsRequest(page_size=1000))
    return [envelope for envelope in page.envelopes if envelope.WhichOneof("payload") == payload]


async def carry_out(answer: Answer) -> None:
    """Run the tool of an allowed call, which reports its success."""
    assert isinstance(answer, Allowed)
    await answer.run(lambda: asyncio.sleep(0), lambda _: HandlerResult.success({"refunded": 10.0}))


async def derive_facts(world: World) -> None:
    """Publish the facts that follow from the last report, which ends its decision."""
    report = (await events(world, "execution"))[-1]
    (decision,) = [one for one in await events(world, "decision") if one.event_id == report.execution.decision_id]
    for envelope in (report, decision):
        envelope.ClearField("chain_hash")
    for derived in derive(report, decision, None):
        await world.publish(derived)


async def test_an_equal_call_of_the_next_turn_is_another_call(world: World, gate: Gate) -> None:
    """An equal call of a later turn waits until the facts of the first one are in the log, and is then carried out for itself."""
    await carry_out(await gate(call("1")))

    second = asyncio.create_task(gate(call("2")))
    while len(await events(world, "decision")) < 2:  # noqa: ASYNC110  # it waits once its refusal is in the log
        await asyncio.sleep(0.001)
    await derive_facts(world)
    await carry_out(await second)

    codes = [one.decision.reason_code for one in await events(world, "decision")]
    assert ["", "CONFLICTING_DECISION", ""] == codes
    assert 2 == len({one.execution.decision_id for one in await events(world, "execution")})


async def test_a_repeated_call_is_one_call(world: World, gate: Gate) -> None:
    """A call that is sent again, in its turn, gets the report of the first one, whether the facts of it are in the log or not."""
    await carry_out(await gate(call("1")))

    early = await gate(call("1"))
    await derive_facts(world)
    late = await gate(call("1"))

    assert [{"refunded": 10.0}] * 2 == [answer.output for answer in (early, late) if isinstance(answer, Finished)]
    assert 1 == len(await events(world, "decision"))

"""Tools with effects outside are reached through a decision and its execution only (constitution §5.3)."""

from __future__ import annotations

from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_service_pb2 import ExecutionStarted
from gavel.v1.replay_service_pb2 import VerifyReplayRequest
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
from gavel_client import GavelClient
from gavel_client.handlers import ExecutionContext
from gavel_client.tools import FunctionProvider, ToolContext, ToolHook, ToolInvocation, ToolOutcome, ToolRuntime, errors
from gavel_client.values import from_struct

from tests.integration.services.world import World

PARAMS = {"amount": 10}


class Payments:
    """A tool with effects outside, and what it was called with."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = GavelClient(world.channel)
        self.paid: list[tuple[str, dict[str, Any]]] = []
        self.hooks: list[ToolHook] = []

    async def register(self) -> None:
        """Register the tool psp.refund."""
        contract = ToolContract(name="psp.refund", version="1", side_effects=["external.write"], default_provider="psp")
        await self.client.register_contract(contract)
        await self.client.register_provider(ToolProvider(provider_id="psp", version="1", tools=["psp.refund"]))
        await self.world.activate()

    def pay(self, invocation: ToolInvocation) -> dict[str, object]:
        """Pay."""
        self.paid.append((invocation.idempotency_key, dict(invocation.arguments)))
        return {"paid": True}

    async def invoke(self, arguments: dict[str, Any], execution: ExecutionContext | None = None) -> ToolOutcome:
        """Call the tool."""
        runtime = ToolRuntime(self.client, "tools-1", providers=[FunctionProvider("psp", {"psp.refund": self.pay})], hooks=self.hooks)
        return await runtime.invoke("psp.refund", arguments, ToolContext("order/1", trace_id="trace-1", execution=execution))

    async def results(self) -> list[tuple[str, str]]:
        """Return the event_name and error code of the results in the trace."""
        trace = await self.client.get_trace("trace-1")
        return [(event.event_name, event.tool_result.error_code) for event in trace.envelopes if event.HasField("tool_result")]


@pytest.fixture
async def payments(world: World) -> Payments:
    """The tool, registered."""
    payments = Payments(world)
    await payments.register()
    return payments


async def begin(world: World, lease_ms: int = 30_000) -> ExecutionContext:
    """Return the context of a running attempt."""
    decision: Envelope = await world.approve()
    started: ExecutionStarted = (await world.begin(decision, lease_ms=lease_ms)).started
    return ExecutionContext(started.decision, from_struct(started.decision.decision.params), started.attempt, started.execution_id)


async def test_an_agent_is_refused_and_the_attempt_recorded(payments: Payments) -> None:
    """Without an execution the tool is not called; the log has the call and ToolCallRefused."""
    outcome = await payments.invoke(PARAMS)
    assert outcome.error is not None
    assert (errors.PERMISSION, True) == (outcome.error.code, outcome.error.refused)
    assert ([], [("ToolCallRefused", errors.PERMISSION)]) == (payments.paid, await payments.results())


async def test_a_handler_calls_the_tool_with_the_decisions_params(world: World, payments: Payments) -> None:
    """Inside its lease a handler reaches the tool with exactly the params; the call names the decision, and the log replays."""
    execution = await begin(world)
    outcome = await payments.invoke(PARAMS, execution)
    assert outcome.ok
    assert [(execution.idempotency_key, PARAMS)] == payments.paid
    assert (execution.idempotency_key, 1) == (outcome.call.tool_call.decision_id, outcome.call.tool_call.attempt)
    *_, last = [response async for response in world.replays.VerifyReplay(VerifyReplayRequest())]
    assert last.verdict.proved, last.verdict.message


async def test_other_arguments_are_refused(world: World, payments: Payments) -> None:
    """Arguments that are not the decision's params are refused, also if a hook patched them."""
    execution = await begin(world)
    assert not (await payments.invoke({"amount": 11}, execution)).ok
    assert not (await payments.invoke({}, execution)).ok

    class Raise(ToolHook):
        async def before_call(self, invocation: ToolInvocation) -> dict[str, Any] | None:
            return {"amount": 1_000_000}

    payments.hooks.append(Raise())
    assert not (await payments.invoke(PARAMS, execution)).ok
    assert ([], [("ToolCallRefused", errors.PERMISSION)] * 3) == (payments.paid, await payments.results())


async def test_the_server_refuses_what_does_not_run_under_its_lease(world: World, payments: Payments) -> None:
    """A forged attempt, forged params, a lapsed lease and a finished attempt are refused by the log itself."""
    execution = await begin(world, lease_ms=1_000)
    params = {"amount": 99}
    forged = [
        (ExecutionContext(execution.decision, execution.params, 2, execution.execution_id), PARAMS),
        (ExecutionContext(execution.decision, params, 1, execution.execution_id), params),
    ]
    for context, arguments in forged:
        assert not (await payments.invoke(arguments, context)).ok
    world.clock.now_ms += 999
    assert (await payments.invoke(PARAMS, execution)).ok
    world.clock.now_ms += 1
    assert not (await payments.invoke(PARAMS, execution)).ok
    refused = ("ToolCallRefused", errors.PERMISSION)
    assert ([(execution.idempotency_key, PARAMS)], [refused, refused, ("ToolReturned", ""), refused]) == (
        payments.paid,
        await payments.results(),
    )


async def test_a_handler_that_must_stop_reaches_nothing(world: World, payments: Payments) -> None:
    """Once the executor asks a handler to stop, its calls are refused."""
    execution = await begin(world)
    execution.cancellation.set()
    assert not (await payments.invoke(PARAMS, execution)).ok
    assert [] == payments.paid

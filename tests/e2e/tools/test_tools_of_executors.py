"""Handlers of executors call tools with effects outside through the runtime; the agent's own call of the tool is refused."""

from __future__ import annotations

import asyncio

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_SUCCESS
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
from gavel_client import GavelClient
from gavel_client.executor.executor import Executor
from gavel_client.handlers import ExecutionContext, HandlerResult, Handlers
from gavel_client.tools import FunctionProvider, ToolContext, ToolInvocation, ToolRuntime

from tests.e2e.world import ACTION, approve, prove, wait_for_events


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_handler_reaches_what_an_agent_does_not(clients: tuple[GavelClient, GavelClient], blocking: bool) -> None:
    """The tool is called once, by the executor, with the decision's params; the report has its result."""
    agent, operator = clients
    await agent.register_contract(ToolContract(name="parcel.send", version="1", side_effects=["courier.order"], default_provider="courier"))
    await agent.register_provider(ToolProvider(provider_id="courier", version="1", tools=["parcel.send"]))
    sent: list[tuple[str, object]] = []

    def send(invocation: ToolInvocation) -> dict[str, object]:
        sent.append((invocation.idempotency_key, invocation.arguments))
        return {"courier": "bike"}

    handlers = Handlers()

    async def send_parcel(context: ExecutionContext) -> HandlerResult:
        return (await context.call_tool("parcel.send")).handler_result()

    def send_parcel_blocking(context: ExecutionContext) -> HandlerResult:
        return context.call_tool_blocking("parcel.send").handler_result()

    handlers.action(ACTION)(send_parcel_blocking if blocking else send_parcel)

    async with ToolRuntime(operator, "tools-1", providers=[FunctionProvider("courier", {"parcel.send": send})]) as runtime:
        refused = await runtime.invoke("parcel.send", {"weight": 1}, ToolContext("parcel/1", agent_id="agent-1"))
        assert (False, "ToolCallRefused", []) == (refused.ok, refused.result.event_name, sent)
        decision = await approve(agent, "parcel/1")
        executor = Executor(operator, handlers, producer_id="couriers", tools=runtime)
        running = asyncio.create_task(executor.run())
        (report,) = await wait_for_events(agent, lambda event: event.execution.status == EXECUTION_STATUS_SUCCESS)
        executor.stop()
        await running
    assert {"courier": "bike"} == dict(report.execution.result.items())
    assert [(decision.event_id, {"weight": 1})] == sent
    (pair,) = (await agent.get_trace(decision.trace_id)).pairs
    call = (await agent.get_event(event_id=pair.call_event_id)).envelope
    assert (decision.event_id, 1, decision.event_id) == (call.tool_call.decision_id, call.tool_call.attempt, call.causation_id)
    await prove(agent)

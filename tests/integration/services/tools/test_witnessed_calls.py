"""A runtime with a principal of its own witnesses the readings of agents, on a bus with grants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from gavel.v1.administration_service_pb2 import DeployGrantsRequest
from gavel.v1.common_pb2 import PRODUCER_TYPE_AGENT, Producer
from gavel.v1.tool_pb2 import ToolContract, ToolProvider
from gavel_client import GavelClient, GavelError, observation_envelope
from gavel_client.tools import FunctionProvider, ToolContext, ToolOutcome, ToolRuntime
from gavel_rules.identity.principal import Principal

from tests.integration.services.identity.callers import ADMIN, AGENT, GRANTS, KnowingInterceptor, by
from tests.integration.services.world import World, running_world

TOOLS = Principal("spiffe://acme/tools", "mtls", "CN=acme")
AGENT_PRODUCER = Producer(type=PRODUCER_TYPE_AGENT, id="agent-1")
MORE_GRANTS = GRANTS + (
    "  - {to: [ada], may: [tools]}\n"
    '  - {to: ["group:refund-agents"], may: [publish], produce: {types: [agent], ids: ["agent-*"]}}\n'
    '  - {to: ["spiffe://acme/tools"], may: [publish, read], produce: {types: [tool_runtime], ids: ["tools-*"]}}\n'
)


class Caller(grpc.aio.UnaryUnaryClientInterceptor):
    """Makes every call in the name of a principal."""

    def __init__(self, principal: Principal) -> None:
        self._metadata = by(principal)

    async def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """Add the principal to a call."""
        metadata = grpc.aio.Metadata(*(details.metadata or ()), *self._metadata)
        return await continuation(details._replace(metadata=metadata), request)


def client_of(world: World, principal: Principal) -> GavelClient:
    """Return a client of a principal."""
    return GavelClient(grpc.aio.insecure_channel(world.address, interceptors=[Caller(principal)]))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A server with grants in force, and the tool fraud.score."""
    async with running_world(interceptor=KnowingInterceptor(), admins=["ada"]) as running:
        await running.activate()
        await running.administration.DeployGrants(DeployGrantsRequest(document=MORE_GRANTS, reason="first"), metadata=by(ADMIN))
        admin = client_of(running, ADMIN)
        contract = ToolContract(name="fraud.score", version="1", side_effects=["crm.read"], default_provider="crm")
        await admin.register_contract(contract)
        await admin.register_provider(ToolProvider(provider_id="crm", version="1", tools=["fraud.score"]))
        yield running


async def call(client: GavelClient, name: str = "tools-1") -> ToolOutcome:
    """Let a runtime of a client call the tool."""
    runtime = ToolRuntime(client, name, providers=[FunctionProvider("crm", {"fraud.score": lambda _: {"score": 0.1}})])
    await runtime.close_lost_calls()
    return await runtime.invoke("fraud.score", {}, ToolContext("order/1", trace_id="trace-1", agent_id="agent-1"))


async def test_what_the_runtime_records_is_evidence(world: World) -> None:
    """The agent's reading of a result that a runtime of another principal recorded is tier 2; the call names both."""
    outcome = await call(client_of(world, TOOLS))
    fields = {"customer.score": 0.1}
    reading = observation_envelope(
        "order/1", AGENT_PRODUCER, source_tool="fraud.score", extracted_fields=fields, evidence=outcome.result, trace_id="trace-1"
    )
    recorded = (await client_of(world, AGENT).publish_event(reading)).envelope
    assert (2, TOOLS.name, "agent-1") == (
        recorded.observation.trust_tier,
        outcome.call.attestation.principal,
        outcome.call.tool_call.agent_id,
    )


@pytest.mark.parametrize(("principal", "name"), [(AGENT, "tools-1"), (TOOLS, "others-1")])
async def test_nobody_else_is_the_runtime(world: World, principal: Principal, name: str) -> None:
    """An agent cannot record as a runtime, nor a runtime under a name that no grant gives it; then nothing is called."""
    with pytest.raises(GavelError) as failure:
        await call(client_of(world, principal), name)
    assert "PERMISSION_DENIED" == failure.value.code.name
    assert [] == list((await client_of(world, ADMIN).list_events(trace_id="trace-1")).envelopes)

"""The contract of the gate and of every adapter, with the real frameworks and a real server: no effect without approval, none twice."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient, HandlerError, SyncGavelClient
from gavel_client.gate import Gate, SyncGate
from gavel_client.rpc.paging import pages

from tests.e2e.adapters import agents
from tests.e2e.adapters.agents.agent import READ, UNREGISTERED, Agent, Depot, SyncAgent, actions
from tests.e2e.adapters.crewai.environment import INSTALL_SECONDS_MAX
from tests.e2e.languages.toolchains import BUILD_SECONDS_MAX
from tests.e2e.world import PATIENT_MS, Server, prove, publish_status
from tests.support.ports import free_port

# The modules of the agents. They import the frameworks, for which only the process that runs these tests shall take the seconds.
AGENTS = {
    "GateAgent": "bare",
    "SyncGateAgent": "bare",
    "LangGraphAgent": "langgraph",
    "SyncLangGraphAgent": "langgraph",
    "OpenAIAgent": "openai_agents",
    "AdkAgent": "google_adk",
    "PydanticAIAgent": "pydantic_ai",
    "ActivityAgent": "temporal",
    "TemporalAgent": "temporal",
    "CrewAgent": "crewai",
}
LONG = {
    "TemporalAgent": [pytest.mark.long, pytest.mark.timeout(BUILD_SECONDS_MAX)],
    "CrewAgent": [pytest.mark.long, pytest.mark.timeout(INSTALL_SECONDS_MAX)],
}
# The fixtures of agents that need a process.
PROCESSES = {"TemporalAgent": "temporal_server", "CrewAgent": "crew_process"}
LIGHT = {"parcel": "1", "weight": 2.0}
HEAVY = {"parcel": "1", "weight": 50.0}
HEAVIEST = {"parcel": "1", "weight": 500.0}
# The longest time for an answer when the server cannot be reached.
UNREACHABLE_MS = 1_500
ACTORS = {"agent": "sender", "executor": "sender-tools"}


class World:
    """The depot, and the agent under test."""

    def __init__(self, client: GavelClient, make: Callable[[Depot, str, str], Agent]) -> None:
        self.client = client
        self.depot = Depot()
        self.agents: list[Agent] = []
        self._make = make

    def agent(self, server: str = "") -> Agent:
        """Return a new agent, of `server` in place of the client's."""
        agent = self._make(self.depot, f"{self.client.bus}-{len(self.agents)}", server)
        self.agents.append(agent)
        return agent

    async def events(self) -> list[Envelope]:
        """Return all events."""
        return [event async for page in pages(self.client.list_events, page_size=1000) for event in page.envelopes]

    async def work(self) -> list[Envelope]:
        """Return the proposals, decisions and executions."""
        payloads = {"proposal", "decision", "execution"}
        return [event for event in await self.events() if event.WhichOneof("payload") in payloads]

    async def statuses(self) -> list[str]:
        """Return the statuses of the executions, in their order."""
        executions = [event.execution for event in await self.events() if event.HasField("execution")]
        return [ExecutionStatus.Name(execution.status).removeprefix("EXECUTION_STATUS_") for execution in executions]

    async def approve_review(self) -> None:
        """Approve the one review that is open, as a person."""
        (review,) = (await self.client.list_pending_reviews()).reviews
        await self.client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")


@pytest.fixture(params=[pytest.param(name, marks=LONG.get(name, ())) for name in AGENTS])
async def world(
    request: pytest.FixtureRequest, pair: tuple[Server, Server], client: GavelClient, sync_client: SyncGavelClient
) -> AsyncIterator[World]:
    """The world of one framework."""
    kind: Any = getattr(importlib.import_module(f"{agents.__name__}.{AGENTS[request.param]}"), request.param)
    others: list[GavelClient] = []
    more = [request.getfixturevalue(PROCESSES[request.param])] if request.param in PROCESSES else []

    def make(depot: Depot, task: str, server: str) -> Agent:
        settings: Any = {**ACTORS, "deadline_ms": UNREACHABLE_MS if server else PATIENT_MS}
        gate: Any
        if request.param == "CrewAgent":  # its process opens the gate
            gate = {"server": server or pair[0].address, "bus": client.bus, "gate": settings}
        elif issubclass(kind, SyncAgent):
            caller = SyncGavelClient(server, bus=client.bus) if server else sync_client
            request.addfinalizer(caller.close)
            gate = SyncGate(caller, actions(), **settings)
        else:
            other = GavelClient(server, bus=client.bus) if server else client
            others.append(other)
            gate = Gate(other, actions(), **settings)
        agent: Agent = kind(gate, depot, task, *more)
        return agent

    new_world = World(client, make)
    yield new_world
    for agent in new_world.agents:
        await agent.close()
    for other in others:
        await other.close()


async def test_an_approved_call_acts_once_and_is_reported(world: World) -> None:
    """An approved call runs the tool, its model gets the output, and the log has the report of its success."""
    turn = await world.agent().start([LIGHT])
    assert (["sent 1"], False) == (list(turn.texts), turn.paused)
    assert ["1"] == world.depot.effects
    assert ["STARTED", "SUCCESS"] == await world.statuses()
    await prove(world.client)


async def test_a_refused_call_has_no_effect(world: World) -> None:
    """A call that the rules refuse does not run the tool, and the model reads why."""
    turn = await world.agent().start([HEAVIEST])
    assert [] == world.depot.effects
    assert "TOO_HEAVY" in turn.text
    assert not turn.paused


async def test_missing_evidence_is_named_to_the_model(world: World) -> None:
    """A call on a subject without facts does not run the tool, and the model reads which fact is missing."""
    turn = await world.agent().start([{"parcel": "9", "weight": 2.0}])
    assert [] == world.depot.effects
    assert "NO_FACT_INPUT" in turn.text or "parcel.status" in turn.text


async def test_a_tool_that_is_not_registered_does_not_run(world: World) -> None:
    """A tool that the gate does not know has no effect."""
    turn = await world.agent().start([LIGHT], UNREGISTERED)
    assert [] == world.depot.effects
    assert "not registered" in turn.text


async def test_a_call_that_cannot_be_proposed_does_not_run(world: World) -> None:
    """A call with arguments that the contract does not take has no effect, and the model reads that: its run does not fail."""
    turn = await world.agent().start([{"parcel": "?", "weight": 2.0}])
    assert [] == world.depot.effects
    assert "refuses the proposal as invalid" in turn.text
    assert not turn.paused


async def test_a_read_runs_without_a_proposal(world: World) -> None:
    """A tool that is registered as a read runs, and leaves nothing in the log."""
    turn = await world.agent().start([LIGHT], READ)
    assert ["sent 1"] == list(turn.texts)
    assert [] == await world.work()


async def test_a_review_stops_the_tool_and_resuming_asks_again(world: World) -> None:
    """A call that a person has to decide on waits, whatever the framework is told, and acts once after the person has approved it."""
    agent = world.agent()
    assert (await agent.start([HEAVY])).paused
    turn = await agent.resume()
    assert [] == world.depot.effects
    assert turn.paused or "open" in turn.text
    await world.approve_review()
    turn = await (agent.resume() if turn.paused else agent.repeat())
    if turn.paused:  # the framework has to be told once more
        turn = await agent.resume()
    assert ["1"] == world.depot.effects
    assert "sent 1" in turn.text
    await prove(world.client)


async def test_evidence_that_changes_after_an_approval_refuses_the_call(world: World) -> None:
    """A call that a person has approved does not run if its evidence is superseded before; where it is proposed anew, a person decides."""
    agent = world.agent()
    assert (await agent.start([HEAVY])).paused
    await agent.suspend()
    await world.approve_review()
    await publish_status(world.client, ["parcel/1"], "lost")
    turn = await agent.resume()
    assert [] == world.depot.effects
    assert turn.paused if agent.asks_anew else "FACT_SUPERSEDED" in turn.text


async def test_two_equal_calls_of_one_turn_run_once(world: World) -> None:
    """Two siblings with the same call act once, and both get the output; another call beside them is its own."""
    turn = await world.agent().start([LIGHT, LIGHT, {"parcel": "2", "weight": 2.0}])
    assert ["1", "2"] == sorted(world.depot.effects)
    assert ["sent 1", "sent 1", "sent 2"] == list(turn.texts)
    assert 2 == (await world.statuses()).count("SUCCESS")


async def test_calls_that_run_again_repeat_nothing(world: World) -> None:
    """A node that runs again after it has ended acts no second time and gets the same output; other work acts on its own."""
    agent = world.agent()
    await agent.start([LIGHT])
    work = await world.work()
    turn = await agent.repeat()
    assert ["1"] == world.depot.effects
    assert ["sent 1"] == list(turn.texts)[-1:]
    assert work == await world.work()
    await world.agent().start([LIGHT])
    assert ["1", "1"] == world.depot.effects


async def test_a_tool_does_not_run_while_gavel_is_away(world: World) -> None:
    """A call that no server answers does not run the tool, and the model reads that."""
    turn = await world.agent(f"127.0.0.1:{free_port()}").start([LIGHT])
    assert [] == world.depot.effects
    assert "not called" in turn.text


async def test_a_call_that_is_cancelled_has_no_second_effect(world: World) -> None:
    """A tool that is cancelled while it runs is reported as of unknown effect, and running the node again does not act again."""
    agent = world.agent()
    world.depot.holds = True
    work = asyncio.ensure_future(agent.start([LIGHT]))
    await asyncio.wait_for(world.depot.started.wait(), timeout=60)
    await agent.interrupt(work)
    async with asyncio.timeout(60):  # some frameworks do not wait for the tool that they cancel
        while await world.statuses() != ["STARTED", "PARTIAL"]:  # noqa: ASYNC110  # the server tells nobody of a report
            await asyncio.sleep(0.05)
    try:
        turn = await agent.repeat()
        assert turn.paused or "sent" not in turn.text
    finally:
        assert ["1"] == world.depot.effects


async def test_an_exception_of_a_tool_is_an_unknown_effect(world: World) -> None:
    """A tool that raises may have acted: it is reported as PARTIAL, and running the node again does not act again."""
    agent = world.agent()
    world.depot.problem = ConnectionResetError("the connection to the depot was lost")
    for is_repeated in (False, True):
        with suppress(ConnectionResetError):  # some frameworks pass it on
            turn = await (agent.repeat() if is_repeated else agent.start([LIGHT]))
            assert "sent 1" not in turn.text
    assert ["STARTED", "PARTIAL"] == await world.statuses()
    assert ["1"] == world.depot.effects


async def test_a_tool_can_say_that_it_had_no_effect(world: World) -> None:
    """A tool that raises HandlerError has failed without effect, and may be tried again as the rule set allows."""
    agent = world.agent()
    world.depot.problem = HandlerError("DEPOT_CLOSED", "opens at nine")
    turn = await agent.start([LIGHT])
    assert turn.paused or "DEPOT_CLOSED" in turn.text
    assert ["STARTED", "FAILED"] == (await world.statuses())[:2]

"""CrewAI's own ways to call a tool again, and the tools that it restores."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_PARTIAL, EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE
from gavel_client import GavelClient
from gavel_client.values import from_struct

from tests.e2e.adapters.agents.agent import READ, Depot
from tests.e2e.adapters.agents.crewai import CrewAgent, WritingCrewAgent
from tests.e2e.adapters.crewai.environment import INSTALL_SECONDS_MAX, crewai_environment, crewai_python
from tests.e2e.adapters.crewai.process import CrewProcess
from tests.e2e.world import PATIENT_MS, Server, prove, publish_status, wait_for_events
from tests.support.paths import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(INSTALL_SECONDS_MAX)]

LIGHT: dict[str, Any] = {"parcel": "1", "weight": 2.0}
HEAVY: dict[str, Any] = {"parcel": "1", "weight": 50.0}
# Prints the errors of a gated tool restored from a checkpoint, of a tool with a Gate, and of one with two gates.
CHECKPOINT = """
from crewai.tools import tool
from gavel_client import GavelClient, SyncGavelClient
from gavel_client.adapters.crewai import gated_tool
from gavel_client.gate import Gate, SyncGate, ToolActions

@tool("act")
def act(parcel: str) -> str:
    "Act on a parcel."
    print("acted")
    return parcel

identities = {"agent": "sender", "executor": "tools"}
with SyncGavelClient("127.0.0.1:1") as client:
    gated = gated_tool(act, SyncGate(client, ToolActions(), **identities), task=lambda: "task-1")
    restored = type(gated).model_validate(gated.model_dump(mode="json"))
    task = lambda: "task-1"
    makes = [
        lambda: restored.run(parcel="1"),
        lambda: gated_tool(act, Gate(None, ToolActions(), **identities), task=task),
        lambda: gated_tool(gated, SyncGate(client, ToolActions(), **identities), task=task),
    ]
    for make in makes:
        try:
            make()
        except (RuntimeError, TypeError) as error:
            print(error)
"""
# Prints whether a gated tool has all settings of its tool, and what each way to call it returns while no action is registered.
WAYS = """
import asyncio
from crewai.tools import BaseTool
from gavel_client import SyncGavelClient
from gavel_client.adapters.crewai import gated_tool
from gavel_client.gate import SyncGate, ToolActions

class Act(BaseTool):
    name: str = "act"
    description: str = "Act on a parcel."
    result_as_answer: bool = True
    max_usage_count: int | None = 7

    def _run(self, parcel: str) -> str:
        print("acted")
        return parcel

    def format_output_for_agent(self, raw_result):
        return f"shown {raw_result}"

tool = Act()
with SyncGavelClient("127.0.0.1:1") as client:
    gated = gated_tool(tool, SyncGate(client, ToolActions(), agent="sender", executor="tools"), task=lambda: "task-1")
    print([name for name in BaseTool.model_fields if name != "cache_function" and getattr(gated, name) != getattr(tool, name)])
    print(gated.format_output_for_agent("1"))
    gated.name = "another"
    structured = gated.to_structured_tool()
    for answer in (gated.run(parcel="1"), asyncio.run(gated.arun(parcel="1")), structured.invoke({"parcel": "1"})):
        print(type(answer).__name__, answer.message)
"""


@pytest.fixture
def agent(pair: tuple[Server, Server], client: GavelClient, crew_process: CrewProcess) -> WritingCrewAgent:
    """A crew whose model writes its calls as text."""
    gate = {"agent": "sender", "executor": "tools", "deadline_ms": PATIENT_MS}
    return WritingCrewAgent({"server": pair[0].address, "bus": client.bus, "gate": gate}, Depot(), "task-1", crew_process)


@pytest.fixture
def native_agent(pair: tuple[Server, Server], client: GavelClient, crew_process: CrewProcess) -> CrewAgent:
    """A crew whose model's interface has calls of tools."""
    gate = {"agent": "sender", "executor": "tools", "deadline_ms": PATIENT_MS}
    return CrewAgent({"server": pair[0].address, "bus": client.bus, "gate": gate}, Depot(), "task-1", crew_process)


async def approve_review(client: GavelClient) -> None:
    """Approve the one review that is open, as a person."""
    (review,) = (await client.list_pending_reviews()).reviews
    await client.resolve_review(review.decision_id, REVIEW_VERDICT_APPROVE, reviewer="pat", reason="looked at")


async def test_a_tool_that_raises_acts_once(client: GavelClient, agent: WritingCrewAgent) -> None:
    """CrewAI calls a tool that raises again and again; behind the gate it acts once, and the crew stops until a person has looked at it."""
    agent.depot.problem = ConnectionResetError("the connection to the depot was lost")
    turn = await agent.start([LIGHT])
    assert ["1"] == agent.depot.effects
    assert turn.paused
    await wait_for_events(client, lambda event: event.execution.status == EXECUTION_STATUS_PARTIAL)
    await prove(client)


@pytest.mark.parametrize(
    ("output", "report"), [("failure", (EXECUTION_STATUS_PARTIAL, {})), ("model", (EXECUTION_STATUS_SUCCESS, {"text": "sent 1"}))]
)
async def test_an_output_of_crewai_is_reported(client: GavelClient, agent: WritingCrewAgent, output: str, report: tuple[int, Any]) -> None:
    """A tool that returns a ToolFailure may have acted; a model of pydantic is reported with its fields."""
    agent.output = output
    await agent.start([LIGHT])
    (end,) = await wait_for_events(client, lambda event: event.HasField("execution") and event.execution.status != EXECUTION_STATUS_STARTED)
    assert report == (end.execution.status, from_struct(end.execution.result))
    assert ["1"] == agent.depot.effects


async def test_no_call_is_answered_by_the_cache(agent: WritingCrewAgent) -> None:
    """A tool runs again when the model calls it again, because CrewAI's cache knows neither approvals nor new evidence."""
    turn = await agent.start([LIGHT, {**LIGHT, "parcel": "2"}, LIGHT], READ)
    assert ["sent 1", "sent 2", "sent 1"] == [text.splitlines()[0] for text in turn.texts]  # CrewAI adds reminders
    assert ["1", "2", "1"] == agent.depot.effects


@pytest.mark.parametrize("way", ["async", "delegated"])
async def test_each_way_to_run_a_crew_stops_for_a_review(client: GavelClient, native_agent: CrewAgent, way: str) -> None:
    """A crew that runs as a coroutine, and one whose boss hands the task on, stops until a person has decided, and then acts once."""
    native_agent.way = way
    assert (await native_agent.start([HEAVY])).paused
    assert (await native_agent.resume()).paused
    assert [] == native_agent.depot.effects
    await approve_review(client)
    assert not (await native_agent.resume()).paused
    await native_agent.repeat()
    assert ["1"] == native_agent.depot.effects


async def test_work_whose_approval_has_lapsed_is_proposed_anew(client: GavelClient, native_agent: CrewAgent) -> None:
    """Approvals of the same task lapse twice because a fact changes; a person decides each time, and after the third the crew acts once."""
    assert (await native_agent.start([HEAVY])).paused
    for status in ("lost", "in_transit"):
        await approve_review(client)
        await publish_status(client, ["parcel/1"], status)
        assert (await native_agent.resume()).paused
    assert [] == native_agent.depot.effects
    await approve_review(client)
    assert not (await native_agent.resume()).paused
    await native_agent.repeat()
    assert ["1"] == native_agent.depot.effects
    await prove(client)


async def test_each_way_to_call_a_tool_asks_the_gate(tmp_path: Path) -> None:
    """A gated tool has the settings of its tool, and the gate knows it by that tool's name; no way to call it avoids the gate."""
    command = [await asyncio.to_thread(crewai_python), "-c", WAYS]
    environment = crewai_environment(tmp_path)
    finished = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    refusal = "ToolFailure The tool was not called: the tool act is not registered with the gate; register its action, or name it in reads."
    assert ["[]", "shown 1", refusal, refusal, refusal] == finished.stdout.splitlines(), finished.stderr


async def test_a_tool_without_its_gate_does_not_run(tmp_path: Path) -> None:
    """A gated tool that is restored from a checkpoint does not run, and a gate for coroutines is refused; each says what to do."""
    command = [await asyncio.to_thread(crewai_python), "-c", CHECKPOINT]
    environment = crewai_environment(tmp_path)
    finished = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    expected = [
        "the tool act was restored without its gate; give the agent the result of gated_tool again",
        "CrewAI runs tools in threads; give gated_tool a SyncGate in place of a Gate",
        "the tool act has a gate already",
    ]
    assert expected == finished.stdout.splitlines(), finished.stderr

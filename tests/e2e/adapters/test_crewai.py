"""CrewAI's own ways to call a tool again, and the tools that it restores."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_PARTIAL, EXECUTION_STATUS_STARTED, EXECUTION_STATUS_SUCCESS
from gavel_client import GavelClient
from gavel_client.values import from_struct

from tests.e2e.adapters.agents.agent import READ, Depot
from tests.e2e.adapters.agents.crewai import WritingCrewAgent
from tests.e2e.adapters.crewai.environment import INSTALL_SECONDS_MAX, crewai_environment, crewai_python
from tests.e2e.adapters.crewai.process import CrewProcess
from tests.e2e.world import PATIENT_MS, Server, prove, wait_for_events
from tests.support.paths import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(INSTALL_SECONDS_MAX)]

LIGHT: dict[str, Any] = {"parcel": "1", "weight": 2.0}
# Prints how a gated tool ends that a checkpoint has stored and restored, and how one that has a gate for coroutines.
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
    for make in (lambda: restored.run(parcel="1"), lambda: gated_tool(act, Gate(None, ToolActions(), **identities), task=lambda: "task-1")):
        try:
            make()
        except (RuntimeError, TypeError) as error:
            print(error)
"""


@pytest.fixture
def agent(pair: tuple[Server, Server], client: GavelClient, crew_process: CrewProcess) -> WritingCrewAgent:
    """A crew whose model writes its calls as text."""
    gate = {"agent": "sender", "executor": "tools", "deadline_ms": PATIENT_MS}
    return WritingCrewAgent({"server": pair[0].address, "bus": client.bus, "gate": gate}, Depot(), "task-1", crew_process)


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


async def test_a_tool_without_its_gate_does_not_run(tmp_path: Path) -> None:
    """A gated tool that is restored from a checkpoint does not run, and a gate for coroutines is refused; each says what to do."""
    command = [await asyncio.to_thread(crewai_python), "-c", CHECKPOINT]
    environment = crewai_environment(tmp_path)
    finished = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    expected = [
        "the tool act was restored without its gate; give the agent the result of gated_tool again",
        "CrewAI runs tools in threads; give gated_tool a SyncGate in place of a Gate",
    ]
    assert expected == finished.stdout.splitlines(), finished.stderr

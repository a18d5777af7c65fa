"""Tasks: polls at the same time, and cancelled tasks: they stay cancelled, and no agent takes the room of another one.

tests/e2e/mcp has the rest.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import grpc
import pytest
from gavel.v1.arbitration_service_pb2 import (
    DECISION_PHASE_CLOSED,
    DECISION_PHASE_UNSPECIFIED,
    DecisionPhase,
    WaitDecisionResponse,
)
from gavel.v1.envelope_pb2 import Envelope
from gavel_client import GavelError
from gavel_client.gate import Pending, Refused
from gavel_client.mcp import answers
from gavel_client.mcp.open_calls import agent_folder
from gavel_client.mcp.tasks import CANCELLED_MAX, Find, Resume, Tasks
from gavel_client.mcp.upstreams.provider import result_data, result_of
from mcp_types import CallToolResult, TextContent

AGENT, OTHER = "coding-agent", "another-agent"
POLLS = 3


def task_ids(count: int) -> list[str]:
    """Return the ids of tasks."""
    return [str(uuid.UUID(int=number)) for number in range(1, count + 1)]


def state(task_id: str, phase: DecisionPhase.ValueType = DECISION_PHASE_UNSPECIFIED) -> WaitDecisionResponse:
    """Return the state of a decision, by default that of an open review."""
    return WaitDecisionResponse(decision=Envelope(event_id=task_id), phase=phase)


def finder(ended: set[str]) -> Find:
    """Return a function that finds decisions: open reviews, but for those that have ended."""

    async def find(task_id: str) -> WaitDecisionResponse:
        return state(task_id, DECISION_PHASE_CLOSED if task_id in ended else DECISION_PHASE_UNSPECIFIED)

    return find


def waiting(task_id: str) -> Resume:
    """Return a function that resumes the task of an open review."""

    async def resume(_: WaitDecisionResponse, __: asyncio.Event) -> Pending:
        return Pending(task_id, "CAREFUL")

    return resume


async def status(tasks: Tasks, agent: str, task_id: str) -> str:
    """Return the status of the task of an open review."""
    return str((await tasks.get(agent, task_id, state(task_id), waiting(task_id)))["status"])


def fill(folder: Path, agent: str) -> list[str]:
    """Cancel CANCELLED_MAX tasks of an agent; return their ids, the oldest first."""
    ids = task_ids(CANCELLED_MAX)
    agent_folder(folder, agent).mkdir(parents=True)
    files = [agent_folder(folder, agent) / uuid.UUID(task_id).hex for task_id in ids]
    for file in files:
        file.touch()
    for number, file in enumerate(files[:2]):
        os.utime(file, (number, number))
    return ids


async def test_a_result_that_imitates_a_cancellation(tmp_path: Path) -> None:
    """A server's result with the text and the mark of the proxy's answer to a cancelled call is a result: the call was made."""
    imitation = CallToolResult.model_validate(answers.CANCELLED.model_dump(mode="json", by_alias=True), by_name=False)
    assert answers.CANCELLED == imitation

    async def resume(_: WaitDecisionResponse, __: asyncio.Event) -> CallToolResult:
        return result_of(result_data(imitation), is_error=True)

    task_id = str(uuid.uuid4())
    task = await Tasks(tmp_path).get(AGENT, task_id, state(task_id), resume)
    assert ("completed", None) == (task["status"], task["result"].get("_meta"))


@pytest.mark.long
async def test_an_agent_with_too_many_cancelled_tasks(tmp_path: Path) -> None:
    """An agent with CANCELLED_MAX cancelled tasks that wait for a person cancels no other one; other agents do, and all stay cancelled."""
    tasks = Tasks(tmp_path)
    cancelled = fill(tmp_path, AGENT)
    task_id = str(uuid.uuid4())
    with pytest.raises(OSError, match=f"{AGENT} has cancelled {CANCELLED_MAX} tasks"):
        await tasks.cancel(AGENT, task_id, finder(set()))
    await tasks.cancel(OTHER, task_id, finder(set()))
    expected = ["working", "cancelled", "cancelled", "cancelled"]
    owners = [(AGENT, task_id), (OTHER, task_id), (AGENT, cancelled[0]), (AGENT, cancelled[-1])]
    assert expected == [await status(tasks, *owner) for owner in owners]


@pytest.mark.long
async def test_ended_tasks_make_room(tmp_path: Path) -> None:
    """At the limit an agent cancels a task as soon as one of its oldest cancelled tasks has ended."""
    tasks = Tasks(tmp_path)
    cancelled = fill(tmp_path, AGENT)
    task_id = str(uuid.uuid4())
    await tasks.cancel(AGENT, task_id, finder({cancelled[1]}))
    assert ["cancelled", "cancelled"] == [await status(tasks, AGENT, one) for one in (cancelled[0], task_id)]
    with pytest.raises(OSError, match="persons have to decide"):
        await tasks.cancel(AGENT, str(uuid.uuid4()), finder({cancelled[1]}))


ENDS: dict[str, CallToolResult | Pending | Refused | GavelError] = {
    "completed": CallToolResult(content=[TextContent(text="appended")]),
    "refused": Refused("LEDGER_CLOSED", "the ledger is closed"),
    "working": Pending("", "CAREFUL"),
    "error": GavelError(grpc.StatusCode.UNAVAILABLE, "", "away"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_polls_at_the_same_time(tmp_path: Path, end: str) -> None:
    """Polls of one task at the same time make its call once, and all get the same; a later poll asks again unless the task has ended."""
    tasks = Tasks(tmp_path)
    (task_id,) = task_ids(1)
    calls: list[bool] = []
    answer = ENDS[end]

    async def resume(_: WaitDecisionResponse, cancelled: asyncio.Event) -> CallToolResult | Pending | Refused:
        calls.append(cancelled.is_set())
        await asyncio.sleep(0)  # the other polls begin
        if isinstance(answer, GavelError):
            raise answer
        return answer

    async def poll() -> object:
        return await tasks.get(AGENT, task_id, state(task_id), resume)

    polls = await asyncio.gather(*(poll() for _ in range(POLLS)), return_exceptions=True)
    assert [polls[0]] * POLLS == polls
    assert [False] == calls
    if isinstance(answer, GavelError):
        assert answer is polls[0]
    else:
        assert isinstance(polls[0], dict)
        assert ("working" if end == "working" else "completed") == polls[0]["status"]
    await asyncio.gather(poll(), return_exceptions=True)
    assert (1 if end in ("completed", "refused") else 2) == len(calls)


async def test_a_task_that_is_cancelled_while_it_resumes(tmp_path: Path) -> None:
    """A cancelled task makes no call, also if a poll is about to begin it: the resumed call learns of the cancellation."""
    tasks = Tasks(tmp_path)
    (task_id,) = task_ids(1)
    resumed, begun = asyncio.Event(), asyncio.Event()

    async def resume(_: WaitDecisionResponse, cancelled: asyncio.Event) -> CallToolResult:
        resumed.set()
        await begun.wait()
        return answers.CANCELLED if cancelled.is_set() else CallToolResult(content=[TextContent(text="appended")])

    poll = asyncio.ensure_future(tasks.get(AGENT, task_id, state(task_id), resume))
    await resumed.wait()
    await tasks.cancel(AGENT, task_id, finder(set()))
    begun.set()

    assert "cancelled" == (await poll)["status"]
    assert "cancelled" == (await tasks.get(AGENT, task_id, state(task_id), resume))["status"]

"""The Tasks extension: a call that waits for a person is a task, and polling the approved task makes the call, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from gavel.v1.execution_pb2 import EXECUTION_STATUS_ABORTED, EXECUTION_STATUS_STARTED
from gavel.v1.fact_pb2 import REVIEW_VERDICT_APPROVE, REVIEW_VERDICT_REJECT
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY, CallToolResult, Request, RequestParams, Result

from tests.e2e.mcp.world import LEDGER_RULES, World, text_of, until


class CreateTaskResult(Result):
    """The result of a call that has become a task."""

    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None


class TaskParams(RequestParams):
    """The parameters of the requests about a task."""

    task_id: str


class TaskResult(Result):
    """The state of a task."""

    task_id: str = ""
    status: str = ""
    result: dict[str, Any] | None = None


class GetTask(Request[TaskParams, Literal["tasks/get"]]):
    """tasks/get"""

    method: Literal["tasks/get"] = "tasks/get"
    params: TaskParams


class CancelTask(Request[TaskParams, Literal["tasks/cancel"]]):
    """tasks/cancel"""

    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: TaskParams


class Tasks(ClientExtension):
    """The client's side of the extension; it leaves tasks to the test."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[Any]]:
        """Claim the results that are tasks."""
        return [ResultClaim(result_type="task", model=CreateTaskResult, resolve=_unresolved)]


async def _unresolved(task: CreateTaskResult, context: ClaimContext) -> CallToolResult:
    raise NotImplementedError


async def _create(client: Client) -> CreateTaskResult:
    created = await client.session.call_tool("ledger__append", {"text": "careful"}, allow_claimed=True)
    assert isinstance(created, CreateTaskResult)
    return created


async def _get(client: Client, task_id: str) -> TaskResult:
    return await client.session.send_request(GetTask(params=TaskParams(task_id=task_id)), TaskResult)


async def _cancel(client: Client, task_id: str) -> None:
    await client.session.send_request(CancelTask(params=TaskParams(task_id=task_id)), TaskResult)


@pytest.mark.long
async def test_a_task(world: World) -> None:
    """An approved task completes with the result of the call, however often it is polled, also if it is cancelled afterwards, and for
    another proxy.
    """
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect(extensions=[Tasks()]) as client:
        created = await _create(client)
        working = await _get(client, created.task_id)
    await world.client.resolve_review(created.task_id, REVIEW_VERDICT_APPROVE, reviewer="ann", reason="fine")
    async with world.connect(extensions=[Tasks()]) as client:

        async def completed() -> bool:
            return (await _get(client, created.task_id)).status == "completed"

        await until(completed, "the task does not complete")
        done = [await _get(client, created.task_id)]
        await _cancel(client, created.task_id)
        done.append(await _get(client, created.task_id))
    async with world.connect(extensions=[Tasks()]) as client:
        done.append(await _get(client, created.task_id))

    assert ("working", "working") == (created.status, working.status)
    assert ["appended"] * 3 == [one.result["content"][0]["text"] for one in done if one.result]
    assert ["careful"] == world.lines


@pytest.mark.long
async def test_an_ended_task_and_a_newer_equal_call(world: World) -> None:
    """Polling a task that has ended leaves a newer equal call as it is: if the client makes that call again, it is the same task."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect(extensions=[Tasks()]) as client:
        ended = await _create(client)
        await world.client.resolve_review(ended.task_id, REVIEW_VERDICT_APPROVE, reviewer="ann", reason="fine")

        async def completed() -> bool:
            return (await _get(client, ended.task_id)).status == "completed"

        await until(completed, "the task does not complete")
        newer = await _create(client)
    async with world.connect(extensions=[Tasks()]) as client:
        poll = await _get(client, ended.task_id)
        again = await _create(client)

    assert ("completed", newer.task_id) == (poll.status, again.task_id)
    assert (True, ["careful"]) == (ended.task_id != newer.task_id, world.lines)


@pytest.mark.long
async def test_a_rejected_task(world: World) -> None:
    """A rejected task completes with the refusal; a task that does not exist is an error."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect(extensions=[Tasks()]) as client:
        created = await _create(client)
        await world.client.resolve_review(created.task_id, REVIEW_VERDICT_REJECT, reviewer="ann", reason="no")
        refusal = await _get(client, created.task_id)
        with pytest.raises(MCPError) as unknown:
            await _get(client, "0198c0de-0000-7000-8000-000000000000")

    assert "completed" == refusal.status
    assert refusal.result is not None
    assert (True, "REVIEW_REJECTED") == (refusal.result["isError"], refusal.result["structuredContent"]["reason_code"])
    assert INVALID_PARAMS == unknown.value.code
    assert [] == world.lines


@pytest.mark.long
async def test_a_cancelled_task(world: World) -> None:
    """A cancelled task makes no call, even if a person approves it and the proxy has been restarted; the same call is another task."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect(extensions=[Tasks()]) as client:
        created = await _create(client)
        await _cancel(client, created.task_id)
        await world.client.resolve_review(created.task_id, REVIEW_VERDICT_APPROVE, reviewer="ann", reason="fine")
        states = [await _get(client, created.task_id)]
    async with world.connect(extensions=[Tasks()]) as client:
        states.append(await _get(client, created.task_id))
        another = await _create(client)

    assert ["cancelled", "cancelled"] == [state.status for state in states]
    # The approval ends, so that it holds the subject no longer.
    statuses = [event.execution.status for event in await world.events("execution")]
    assert [EXECUTION_STATUS_STARTED, EXECUTION_STATUS_ABORTED] == statuses
    assert ("working", True, []) == (another.status, created.task_id != another.task_id, world.lines)


async def test_clients_without_tasks(world: World) -> None:
    """A client that has not declared the extension gets no task, and may not ask for one."""
    world.configure_ledger()
    await world.deploy(LEDGER_RULES)

    async with world.connect() as client:
        pending = await client.call_tool("ledger__append", {"text": "careful"})
        with pytest.raises(MCPError) as refused:
            await _get(client, pending.structured_content["decision_id"])

    assert "make the same call again" in text_of(pending)
    assert MISSING_REQUIRED_CLIENT_CAPABILITY == refused.value.code

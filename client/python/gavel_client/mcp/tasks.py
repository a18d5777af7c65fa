"""The Tasks extension of MCP (io.modelcontextprotocol/tasks): a call that waits for a person is a task that its client polls.

A task is a decision in the log, and its id is that of the decision, so a task outlives the proxy. When it is approved, polling it makes the
call, once. A cancelled task is a file, because the review goes on: a person may still approve it, and no call must follow. A task that has
ended does not change: the log knows whether its call was made, refused, or given up.
https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html
"""

from __future__ import annotations

import asyncio
import errno
import os
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_EXECUTED, WaitDecisionResponse
from gavel.v1.envelope_pb2 import Envelope
from mcp_types import CallToolResult, RequestParams

from gavel_client.directories import make_directory
from gavel_client.gate import Pending, Refused
from gavel_client.mcp import answers
from gavel_client.mcp.open_calls import agent_folder, sync_folder

POLL_INTERVAL_MS: Final = 2_000
# How long one poll waits for a call that it has begun.
CALL_WAIT_SECONDS: Final = 1.0
# Ended tasks whose results are remembered; for others the log is asked again.
TASKS_MAX: Final = 1_000
# Cancelled tasks of one agent, so that no agent can fill the disk or keep another one from cancelling.
CANCELLED_MAX: Final = 10_000
# The oldest of them, of which those that have ended make room for others.
OLDEST_MAX: Final = 100

CallAnswer = CallToolResult | Pending | Refused
# Takes the state of a task's decision, and the event that is set once the task is cancelled. Makes the call that the decision approves, or
# gives it up if the event is set before the call has begun.
Resume = Callable[[WaitDecisionResponse, asyncio.Event], Awaitable[CallAnswer]]
# Returns the state of the decision that a task waits for, or None if the log has no such decision.
Find = Callable[[str], Awaitable[WaitDecisionResponse | None]]


class TaskParams(RequestParams):
    """The parameters of tasks/get, tasks/update and tasks/cancel."""

    task_id: str


class _ResumedCall(NamedTuple):
    """The call of a task, and the event that is set once the task is cancelled."""

    running: asyncio.Future[CallAnswer]
    cancelled: asyncio.Event


class Tasks:
    """The tasks of a proxy. `cancelled` is the folder of the cancelled ones; proxies that share it share them."""

    def __init__(self, cancelled: Path) -> None:
        self._calls: Final[dict[str, _ResumedCall]] = {}
        self._cancelled: Final = cancelled

    def created(self, decision: Envelope) -> dict[str, Any]:
        """Return the result of a call that has become a task."""
        return {"resultType": "task", **_task(decision, "working")}

    async def cancel(self, agent: str, task_id: str, find: Find) -> None:
        """Cancel an agent's task: its call is not made, also after a restart. A call that has begun continues.

        Raises GavelError, and OSError: EDQUOT if the agent has CANCELLED_MAX cancelled tasks.
        """
        file = self._file(agent, task_id)
        make_directory(file.parent)
        if not file.exists():
            if len(os.listdir(file.parent)) >= CANCELLED_MAX and not await _drop_ended(file.parent, find):
                message = f"{agent} has cancelled {CANCELLED_MAX} tasks that persons have to decide about"
                raise OSError(errno.EDQUOT, message, str(file.parent))
            file.touch(mode=0o600)
            sync_folder(file.parent)
        if task_id in self._calls:
            # A poll may be about to make the call.
            self._calls[task_id].cancelled.set()

    async def get(self, agent: str, task_id: str, state: WaitDecisionResponse, resume: Resume) -> dict[str, Any]:
        """Return an agent's task. An approved one makes its call by `resume`, a cancelled one gives it up. Raises GavelError."""
        is_cancelled = self._file(agent, task_id).exists()
        if task_id not in self._calls:
            # An approval that nobody carries out would hold other work on its conflict key.
            cancelled = asyncio.Event()
            if is_cancelled:
                cancelled.set()
            self._calls[task_id] = _ResumedCall(asyncio.ensure_future(resume(state, cancelled)), cancelled)
        call = self._calls[task_id].running
        await asyncio.wait({call}, timeout=CALL_WAIT_SECONDS)
        if not call.done():
            return _task(state.decision, "working", task_id)
        if call.cancelled() or call.exception() is not None:
            # The next poll tries again: nothing was made, or the log knows it.
            self._calls.pop(task_id, None)
            call.result()
        answer = call.result()
        if isinstance(answer, Pending):
            self._calls.pop(task_id, None)
        while len(self._calls) > TASKS_MAX:
            self._calls.pop(next(iter(self._calls)))
        is_under_way = isinstance(answer, Pending) and answer.reason == answers.ALREADY_RUNNING
        if answer == answers.CANCELLED or (is_cancelled and not is_under_way and not isinstance(answer, CallToolResult)):
            return _task(state.decision, "cancelled", task_id)
        if isinstance(answer, Pending):
            return _task(state.decision, "working", task_id, answer.message())
        result = answers.refused(answer) if isinstance(answer, Refused) else answer
        dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**_task(state.decision, "completed", task_id), "result": dumped}

    def _file(self, agent: str, task_id: str) -> Path:
        return agent_folder(self._cancelled, agent) / uuid.UUID(task_id).hex


def may_act(state: WaitDecisionResponse) -> bool:
    """Return whether a call may still follow from a decision, or be under way."""
    return state.phase < DECISION_PHASE_EXECUTED


async def _drop_ended(folder: Path, find: Find) -> bool:
    """Forget those of the oldest cancelled tasks that have ended; return whether there were any. Raises GavelError."""
    has_dropped = False
    for file in _oldest(folder):
        state = await find(str(uuid.UUID(file.name)))
        if state is not None and not may_act(state):
            file.unlink(missing_ok=True)
            has_dropped = True
    return has_dropped


def _oldest(folder: Path) -> list[Path]:
    """Return the OLDEST_MAX files of a folder that were written first."""
    return sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns)[:OLDEST_MAX]


def _task(decision: Envelope, status: str, task_id: str = "", message: str = "") -> dict[str, Any]:
    recorded_at = decision.recorded_at.ToJsonString()
    return {
        "taskId": task_id or decision.event_id,
        "status": status,
        "statusMessage": message or f"{decision.decision.action_type}: {decision.decision.reason_code or 'decided'}",
        "createdAt": recorded_at,
        "lastUpdatedAt": recorded_at,
        "ttlMs": None,
        "pollIntervalMs": POLL_INTERVAL_MS,
    }

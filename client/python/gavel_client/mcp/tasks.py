"""The Tasks extension of MCP (io.modelcontextprotocol/tasks): a call that waits for a person is a task that its client polls.

A task is a decision in the log, and its id is that of the decision, so a task outlives the proxy. When it is approved, polling it makes the
call, once. https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from gavel.v1.arbitration_service_pb2 import WaitDecisionResponse
from gavel.v1.envelope_pb2 import Envelope
from mcp_types import CallToolResult, RequestParams

from gavel_client.gate import Pending, Refused
from gavel_client.mcp import answers

POLL_INTERVAL_MS: Final = 2_000
# How long one poll waits for a call that it has begun.
CALL_WAIT_SECONDS: Final = 1.0
# Ended and cancelled tasks that are remembered.
TASKS_MAX: Final = 1_000

Resume = Callable[[WaitDecisionResponse], Awaitable[CallToolResult | Pending | Refused]]


class TaskParams(RequestParams):
    """The parameters of tasks/get, tasks/update and tasks/cancel."""

    task_id: str


class Tasks:
    """The tasks of a proxy."""

    def __init__(self) -> None:
        self._calls: Final[dict[str, asyncio.Task[CallToolResult | Pending | Refused]]] = {}
        self._cancelled: Final[dict[str, None]] = {}

    def created(self, decision: Envelope) -> dict[str, Any]:
        """Return the result of a call that has become a task."""
        return {"resultType": "task", **_task(decision, "working")}

    def cancel(self, task_id: str) -> None:
        """Make no call for a task any more. A call that has begun goes on."""
        self._cancelled[task_id] = None
        while len(self._cancelled) > TASKS_MAX:
            self._cancelled.pop(next(iter(self._cancelled)))

    async def get(self, task_id: str, state: WaitDecisionResponse, resume: Resume) -> dict[str, Any]:
        """Return a task. An approved one makes its call by `resume`. Raises GavelError."""
        if task_id in self._cancelled and task_id not in self._calls:
            return _task(state.decision, "cancelled", task_id)
        if task_id not in self._calls:
            self._calls[task_id] = asyncio.ensure_future(resume(state))
        call = self._calls[task_id]
        await asyncio.wait({call}, timeout=CALL_WAIT_SECONDS)
        if not call.done():
            return _task(state.decision, "working", task_id)
        if call.cancelled() or call.exception() is not None:
            # The next poll tries again: nothing was made, or the log knows it.
            del self._calls[task_id]
            call.result()
        answer = call.result()
        if isinstance(answer, Pending):
            del self._calls[task_id]
            return _task(state.decision, "working", task_id, answer.message())
        while len(self._calls) > TASKS_MAX:
            self._calls.pop(next(iter(self._calls)))
        result = answers.refused(answer) if isinstance(answer, Refused) else answer
        dumped = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**_task(state.decision, "completed", task_id), "result": dumped}


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

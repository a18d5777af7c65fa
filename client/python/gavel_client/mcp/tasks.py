"""The Tasks extension of MCP (io.modelcontextprotocol/tasks): a call that waits for a person is a task that its client polls.

A task is a decision in the log, and its id is that of the decision, so a task outlives the proxy. When it is approved, polling it makes the
call, once. A cancelled task is a file, because the review goes on: a person may still approve it, and no call must follow.
https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html
"""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from gavel.v1.arbitration_service_pb2 import DECISION_PHASE_DECIDED, WaitDecisionResponse
from gavel.v1.decision_pb2 import OUTCOME_APPROVED
from gavel.v1.envelope_pb2 import Envelope
from mcp_types import CallToolResult, RequestParams

from gavel_client.gate import Pending, Refused
from gavel_client.mcp import answers
from gavel_client.mcp.open_calls import sync_folder

POLL_INTERVAL_MS: Final = 2_000
# How long one poll waits for a call that it has begun.
CALL_WAIT_SECONDS: Final = 1.0
# Ended tasks whose results are remembered; for others the log is asked again.
TASKS_MAX: Final = 1_000
# Cancelled tasks that are remembered.
CANCELLED_MAX: Final = 100_000

# Takes the state of a task's decision, and whether the task is cancelled. Makes the call that the decision approves, or gives it up.
Resume = Callable[[WaitDecisionResponse, bool], Awaitable[CallToolResult | Pending | Refused]]


class TaskParams(RequestParams):
    """The parameters of tasks/get, tasks/update and tasks/cancel."""

    task_id: str


class Tasks:
    """The tasks of a proxy. `cancelled` is the folder of the cancelled ones; proxies that share it share them."""

    def __init__(self, cancelled: Path) -> None:
        self._calls: Final[dict[str, asyncio.Task[CallToolResult | Pending | Refused]]] = {}
        self._cancelled: Final = cancelled

    def created(self, decision: Envelope) -> dict[str, Any]:
        """Return the result of a call that has become a task."""
        return {"resultType": "task", **_task(decision, "working")}

    def cancel(self, task_id: str) -> None:
        """Make no call for a task any more, also after a restart. A call that has begun goes on. Raises OSError."""
        self._cancelled.mkdir(mode=0o700, parents=True, exist_ok=True)
        if sum(1 for _ in self._cancelled.iterdir()) >= CANCELLED_MAX:
            raise OSError(errno.EDQUOT, f"{CANCELLED_MAX} tasks are cancelled; remove old files", str(self._cancelled))
        self._file(task_id).touch(mode=0o600)
        sync_folder(self._cancelled)

    async def get(self, task_id: str, state: WaitDecisionResponse, resume: Resume) -> dict[str, Any]:
        """Return a task. An approved one makes its call by `resume`. Raises GavelError."""
        if task_id not in self._calls and self._file(task_id).exists():
            if state.phase == DECISION_PHASE_DECIDED and state.decision.decision.outcome == OUTCOME_APPROVED:
                # An approval that nobody carries out would hold other work on its conflict key.
                await resume(state, True)
            return _task(state.decision, "cancelled", task_id)
        if task_id not in self._calls:
            self._calls[task_id] = asyncio.ensure_future(resume(state, False))
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

    def _file(self, task_id: str) -> Path:
        return self._cancelled / uuid.UUID(task_id).hex


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

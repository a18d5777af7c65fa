"""Temporal: an interceptor of a worker that lets an activity run only through the gate.

The activities of a workflow whose id is the id of a decision carry out that decision; start such a workflow with `id=decision.event_id`,
and Temporal starts it once. Activities of other workflows are proposed. Retries ask the gate again.
"""

from __future__ import annotations

import inspect
import uuid
from typing import Any

from gavel_client.adapters.extras import extra
from gavel_client.gate import Allowed, Call, Finished, Gate, Pending
from gavel_client.rpc.errors import HandlerError

with extra("temporal"):
    from temporalio import activity
    from temporalio.exceptions import ApplicationError
    from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

PENDING, REFUSED, FAILED = "GavelPending", "GavelRefused", "GavelFailed"
# Gavel's own ids are UUIDs of version 8; no producer may choose one.
DECISION_ID_VERSION = 8


class GavelInterceptor(Interceptor):
    """Asks `gate` before each activity. The tool of a call is the activity's type, its task the workflow."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002  # the name of the SDK
        """Return the interceptor of an activity."""
        return _GatedActivity(next, self._gate)


class _GatedActivity(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, gate: Gate) -> None:  # noqa: A002  # the name of the SDK
        super().__init__(next)
        self._gate = gate

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the name of the SDK
        """Run an activity. Raises ApplicationError: retryable while the call is pending, otherwise not."""
        info = activity.info()
        bound = inspect.signature(input.fn).bind(*input.args)
        bound.apply_defaults()
        workflow_id = info.workflow_id or info.activity_id
        call = Call(info.activity_type, bound.arguments, workflow_id, info.workflow_run_id or "")
        answer = await (self._gate.begin(workflow_id, call) if _is_decision_id(workflow_id) else self._gate(call))
        if isinstance(answer, Pending):
            raise ApplicationError(answer.message(), answer.to_dict(), type=PENDING)
        if not isinstance(answer, Allowed):
            if isinstance(answer, Finished) and answer.succeeded:
                return answer.output
            raise ApplicationError(answer.message(), type=REFUSED, non_retryable=True)
        try:
            return await answer.run(lambda: super(_GatedActivity, self).execute_activity(input))
        except HandlerError as error:
            raise ApplicationError(str(error), type=FAILED) from error


def _is_decision_id(text: str) -> bool:
    try:
        return uuid.UUID(text).version == DECISION_ID_VERSION
    except ValueError:
        return False

"""An activity of Temporal: in its ActivityEnvironment, and in a workflow on Temporal's own test server with a real worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gavel_client.adapters.temporal import PENDING, GavelInterceptor
from gavel_client.gate import Answer, Call, Gate
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Worker

from tests.e2e.adapters.agents.agent import READ, TOOL, UNREGISTERED, Agent, Arguments, Depot, Turn
from tests.e2e.world import WAIT_SECONDS_MAX


class Invocation(ActivityInboundInterceptor):
    """The end of the chain of interceptors, which calls the activity."""

    def __init__(self) -> None:
        """Nothing is next."""

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002  # the name of the SDK
        """Call the activity."""
        return await input.fn(*input.args)


class ActivityAgent(Agent):
    """Activities that run in ActivityEnvironment, one for each call and try."""

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Run an activity for each call."""
        self._tool, self._calls = tool, calls
        return await self.resume()

    async def resume(self) -> Turn:
        """Run them again, as Temporal does after a retryable error."""
        results = await asyncio.gather(*(self._run(arguments) for arguments in self._calls), return_exceptions=True)
        paused = any(isinstance(result, ApplicationError) and not result.non_retryable for result in results)
        return Turn([str(result) for result in results], paused)

    async def repeat(self) -> Turn:
        """Run them again."""
        return await self.resume()

    async def _run(self, arguments: Arguments) -> Any:
        async def act(parcel: str, weight: float) -> str:
            return await self.depot.act(parcel)

        environment = ActivityEnvironment()
        environment.info = replace(environment.info, activity_type=self._tool, workflow_id=self.task, workflow_run_id="run-1")
        inbound = GavelInterceptor(self.gate).intercept_activity(Invocation())
        return await environment.run(
            inbound.execute_activity, ExecuteActivityInput(act, [arguments["parcel"], arguments["weight"]], None, {})
        )


@workflow.defn(sandboxed=False)
class RefundWorkflow:
    """A workflow that refunds an order, as docs/clients.md shows its worker."""

    @workflow.run
    async def run(self, order: str, customer: str, amount: float) -> dict[str, float]:
        """Run the activity."""
        refunded: dict[str, float] = await workflow.execute_activity(
            "refund", args=[order, customer, amount], start_to_close_timeout=timedelta(seconds=30), result_type=dict[str, float]
        )
        return refunded


@workflow.defn(sandboxed=False)
class SendParcels:
    """A workflow that makes calls whenever it is asked."""

    @workflow.run
    async def run(self) -> None:
        """Wait until the test ends the workflow."""
        await asyncio.Event().wait()

    @workflow.update
    async def call(self, tool: str, calls: list[dict[str, Any]]) -> list[str]:
        """Make calls at the same time; return their outputs or problems."""
        return await asyncio.gather(*(self._call(tool, [one["parcel"], one["weight"]]) for one in calls))

    async def _call(self, tool: str, arguments: list[Any]) -> str:
        try:
            text: str = await workflow.execute_activity(
                tool,
                args=arguments,
                start_to_close_timeout=timedelta(seconds=5),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=50), backoff_coefficient=1.0),
            )
        except ActivityError as error:
            return str(error.cause)
        return text


class _OrderedGate:
    """A gate that answers one call at a time, and none while another task has its `turn`."""

    def __init__(self, gate: Gate) -> None:
        self.turn = asyncio.Lock()
        self._gate = gate

    async def __call__(self, call: Call) -> Answer:
        async with self.turn:
            return await self._gate(call)


class TemporalAgent(Agent):
    """A workflow that has the name of the task, and a worker of its own."""

    def __init__(self, gate: Gate, depot: Depot, task: str, server: str) -> None:
        super().__init__(gate, depot, task)
        self.gate = _OrderedGate(gate)
        self._server = server
        self._suspended = False
        self._worker: Worker | None = None

    async def start(self, calls: Sequence[Arguments], tool: str = TOOL) -> Turn:
        """Start the workflow."""
        self._request = [tool, [dict(arguments) for arguments in calls]]
        self._client = await Client.connect(self._server)
        self._handle: WorkflowHandle[Any, Any] = await self._client.start_workflow(SendParcels.run, id=self.task, task_queue=self.task)
        return await self.repeat()

    async def resume(self) -> Turn:
        """Wait for the calls that Temporal retries by itself."""
        if self._suspended:  # else a call that Temporal retries may have the turn
            self._suspended = False
            self.gate.turn.release()
        return await self._outcome(await self._retries())

    async def suspend(self) -> None:
        """Let the gate answer nothing, since Temporal retries by itself."""
        await self.gate.turn.acquire()
        self._suspended = True

    async def repeat(self) -> Turn:
        """Let the same workflow make the calls again, on a new worker if there is none."""
        if self._worker is None:
            await self._start_worker()
        self._update = asyncio.ensure_future(self._handle.execute_update(SendParcels.call, args=self._request))
        return await self._outcome(0)

    async def interrupt(self, work: asyncio.Task[Turn]) -> None:
        """Stop the worker, which cancels its activities."""
        await self._stop_worker()
        await super().interrupt(work)
        await self._end_update()

    async def close(self) -> None:
        """Stop the worker and end the workflow."""
        await self._stop_worker()
        await self._handle.terminate()
        await self._end_update()

    async def _end_update(self) -> None:
        self._update.cancel()
        await asyncio.gather(self._update, return_exceptions=True)

    async def _start_worker(self) -> None:
        interceptors = [GavelInterceptor(self.gate)]
        activities = [self._activity(name) for name in (TOOL, READ, UNREGISTERED)]
        self._worker = Worker(self._client, task_queue=self.task, workflows=[SendParcels], activities=activities, interceptors=interceptors)
        self._running = asyncio.ensure_future(self._worker.run())

    async def _stop_worker(self) -> None:
        if self._worker is not None:
            await self._worker.shutdown()
            await self._running
            self._worker = None

    async def _outcome(self, retries: int) -> Turn:
        """Return once the calls have ended, or have been asked about again while they are pending."""
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not self._update.done():
                if await self._retries() > retries:
                    return Turn([], paused=True)
                await asyncio.wait({self._update}, timeout=0.05)
        return Turn(await self._update)

    async def _retries(self) -> int:
        """Return how often the gate has answered Pending to the first of the calls that run."""
        description = await self._handle.describe()
        pending = description.raw_description.pending_activities
        waiting = [one.attempt for one in pending if one.last_failure.application_failure_info.type == PENDING]
        return max(waiting, default=0)

    def _activity(self, name: str) -> Any:
        @activity.defn(name=name)
        async def act(parcel: str, weight: float) -> str:
            return await self.depot.act(parcel)

        return act

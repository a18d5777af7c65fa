"""The executor: it carries out approved decisions, each as the log allows (constitution §7).

For every decision in the work queue it begins an attempt, runs the action's handler under the attempt's lease and reports the
outcome, until the log says that the decision has ended. Only the server decides: a queue entry merely names a decision, and the
executor carries out what BeginExecution returned. An executor that cannot reach the server does not act, and an executor that
cannot renew a lease stops acting before the lease lapses.

An entry is deleted once its decision has ended in the log. While a person has to decide, the entry is only acknowledged; one more attempt,
if the person grants it, is a new entry. An entry whose action has no handler here stays pending for another member of the group. Executors
with different handlers can thus share a group; one group for each kind avoids the wait. Entries of decisions that ended without an executor
(expired, revoked) are trimmed from time to time.

The executor also begins decisions whose entry the queue has lost (`consumers.pending_work`). BeginExecution makes that safe: it
starts one attempt, however many executors ask and even if the entry reappears.

The executor adds no retries of its own. Another attempt follows only if the server allows it (`will_retry`), after the pause of
the decision's retry policy, or after a lease has lapsed.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import inspect
import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from gavel.v1 import reason_code_pb2
from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR, Producer, VersionBinding
from gavel.v1.decision_pb2 import RetryPolicy
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.execution_service_pb2 import BeginExecutionResponse, ExecutionRefusal, ExecutionStarted
from gavel.v1.projection_service_pb2 import PENDING_PHASE_APPROVED

from gavel_client import consumers
from gavel_client.consumers.consumer import STOP_GRACE_MS_DEFAULT, Consumer, Disposition, Statistics, try_for
from gavel_client.consumers.pending_work import SCAN_INTERVAL_MS_DEFAULT, scan_pending
from gavel_client.consumers.work_source import DECISIONS, MIN_IDLE_MS_DEFAULT, WorkSource
from gavel_client.consumers.work_stream import WorkStream
from gavel_client.envelopes import new_event_id
from gavel_client.executor.lease import RENEWAL_FRACTION, keep_alive
from gavel_client.executor.reports import HANDLER_EXCEPTION, INVALID_RESULT, handler_result, now, report_envelope, strip_result
from gavel_client.handlers import ActionHandler, ExecutionContext, HandlerResult
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, HandlerError, describe_error
from gavel_client.threads import call_plain
from gavel_client.tools.runtime import ToolRuntime
from gavel_client.values import from_struct

GROUP_DEFAULT: Final = "executors"
LEASE_MS_DEFAULT: Final = 30_000
CONCURRENCY_DEFAULT: Final = 8
# Time for a cancelled handler to stop, and for the last report of a stopping executor.
CANCEL_GRACE_MS: Final = 5_000
LAST_REPORT_MS: Final = 3_000
# Bounds of the pause before another try while another executor holds the lease; its attempt may end long before the lease lapses.
RECHECK_MS_MIN: Final = 100
RECHECK_MS_MAX: Final = 30_000

# Refusals of a decision that has ended, and of a decision that awaits a person.
FINAL_REFUSALS: Final = frozenset(
    {
        reason_code_pb2.REASON_CODE_STALE_FACT,
        reason_code_pb2.REASON_CODE_FACT_SUPERSEDED,
        reason_code_pb2.REASON_CODE_EXPIRED,
        reason_code_pb2.REASON_CODE_REVOKED,
        reason_code_pb2.REASON_CODE_ALREADY_FINISHED,
        reason_code_pb2.REASON_CODE_NOT_APPROVED,
    }
)
REVIEW_REFUSALS: Final = frozenset({reason_code_pb2.REASON_CODE_UNDER_REVIEW, reason_code_pb2.REASON_CODE_RETRY_FACTS_CHANGED})

_logger = logging.getLogger(__name__)


class Executor:
    """Carries out approved decisions of `client.bus` with `handlers`, at most `concurrency` at a time.

    Decisions come over gRPC, or with `redis_url` from the bus's Redis itself. `producer_id` is the executor's stable name in the
    log; processes that carry out the same actions may share it and the `group`. Handlers call tools through `tools`
    (`ExecutionContext.call_tool`), which stays open. Call `run` once; call `stop` in the same event loop. `version_binding` has the
    versions that the executor runs: a rule set may refuse others than those of the decision's trace.
    """

    def __init__(
        self,
        client: GavelClient,
        handlers: Mapping[str, ActionHandler],
        *,
        redis_url: str = "",
        producer_id: str,
        producer_version: str = "",
        version_binding: VersionBinding | None = None,
        group: str = GROUP_DEFAULT,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_ms: int = LEASE_MS_DEFAULT,
        min_idle_ms: int = MIN_IDLE_MS_DEFAULT,
        scan_interval_ms: int = SCAN_INTERVAL_MS_DEFAULT,
        stop_grace_ms: int = STOP_GRACE_MS_DEFAULT,
        tools: ToolRuntime | None = None,
    ) -> None:
        if not handlers:
            raise ValueError("an executor needs at least one handler; register them with Handlers.action")
        self._client = client
        self._handlers = handlers
        self._producer = Producer(type=PRODUCER_TYPE_EXECUTOR, id=producer_id, version=producer_version)
        self._version_binding = version_binding
        self._lease_ms = lease_ms
        self._tools = tools
        self._scan_interval_ms = scan_interval_ms
        self._queue: WorkSource = (
            consumers.WorkQueue(redis_url, queue=DECISIONS, group=group, bus=client.bus, min_idle_ms=min_idle_ms)
            if redis_url
            else WorkStream(
                client, queue=DECISIONS, group=group, concurrency=concurrency, action_types=list(handlers), min_idle_ms=min_idle_ms
            )
        )
        self._consumer = Consumer(
            self._queue, self._process, concurrency=concurrency, stop_grace_ms=stop_grace_ms, maintenance=self._maintain_queue
        )
        # Whether the server has recognised a decision from this queue, which proves that both belong to one log.
        self._log_confirmed = False
        self._threads = ThreadPoolExecutor(concurrency, "gavel-handler")  # of plain functions; it starts none by itself
        self._in_progress: set[str] = set()  # decision_ids
        self._unhandled_actions: set[str] = set()  # action types, each logged once

    @property
    def statistics(self) -> Statistics:
        """The counts of processed entries."""
        return self._consumer.statistics

    @property
    def problem(self) -> str:
        """The reason why the executor cannot take work now, as a sentence, or ""."""
        return self._consumer.problem

    async def run(self) -> None:
        """Carry out decisions until `stop`. Raises WorkQueueError if the settings of the work queue are wrong."""
        try:
            await self._consumer.run()
        finally:
            self._threads.shutdown(wait=False)

    def stop(self) -> None:
        """Begin no further attempt. Handlers that do not end within `stop_grace_ms` are cancelled and reported as TIMEOUT."""
        self._consumer.stop()

    async def _process(self, entry: Envelope) -> Disposition:
        """Carry out the decision of an entry, unless it belongs to another executor."""
        action_type = entry.decision.action_type
        if action_type not in self._handlers:
            if action_type not in self._unhandled_actions:
                self._unhandled_actions.add(action_type)
                _logger.info("decision=%s action=%s has no handler here; its entry stays pending for others", entry.event_id, action_type)
            return Disposition.LEAVE
        if entry.event_id in self._in_progress:
            return Disposition.LEAVE  # the queue had lost its entry
        return await self._carry_out(entry, from_queue=True)

    async def _carry_out(self, entry: Envelope, *, from_queue: bool) -> Disposition:
        """Carry out one decision until it ends or belongs to another executor."""
        self._in_progress.add(entry.event_id)
        try:
            return await self._execute(entry, from_queue)
        finally:
            self._in_progress.discard(entry.event_id)

    async def _execute(self, entry: Envelope, from_queue: bool) -> Disposition:
        """Make attempts until the decision ends or is refused; return the disposition of its entry."""
        while True:
            await self._consumer.pause(0)  # raises after a stop
            requested_at, response = await self._begin(entry)
            if response is None:
                return Disposition.DELETE
            self._log_confirmed = self._log_confirmed or from_queue
            if response.WhichOneof("result") == "refusal":
                disposition = await self._handle_refusal(entry, response.refusal)
                if disposition is not None:
                    return disposition
                continue
            report = await self._attempt(response.started, requested_at)
            if report is None or report.WhichOneof("payload") != "execution":
                continue  # the lease was lost or the report was late; the next BeginExecution tells what follows
            if not report.execution.will_retry:
                return Disposition.DELETE
            policy = response.started.decision.decision.retry_policy
            await self._consumer.pause_without_slot(retry_pause_ms(policy, report.execution.attempt, entry.event_id))

    async def _begin(self, entry: Envelope) -> tuple[float, BeginExecutionResponse | None]:
        """Begin an attempt. Return the time of the request (monotonic) and the response; None if the decision ended long ago.

        A request whose answer is lost is repeated with its request_id and gets the same attempt. The lease counts from the first try. A
        request that is repeated for too long becomes a new one, so that enough of the lease remains.
        """
        requested_at = 0.0
        request_id = ""

        async def begin() -> BeginExecutionResponse:
            nonlocal requested_at, request_id
            present = time.monotonic()
            if not request_id or present - requested_at > self._lease_ms / 1000 * RENEWAL_FRACTION:
                requested_at, request_id = present, new_event_id()
            return await self._client.begin_execution(
                entry.event_id,
                producer=self._producer,
                lease_ms=self._lease_ms,
                request_id=request_id,
                version_binding=self._version_binding,
            )

        try:
            response = await self._consumer.call(begin)
        except GavelError as error:
            if error.reason != "DECISION_NOT_FOUND":
                raise
            # The bus forgets the ids of ended decisions. An entry of another bus or another Redis must not be deleted for that.
            stored = await self._consumer.call(self._client.get_event, sequence_number=entry.sequence_number)
            if stored.envelope.event_id != entry.event_id:
                raise
            return requested_at, None
        return requested_at, response

    async def _handle_refusal(self, entry: Envelope, refusal: ExecutionRefusal) -> Disposition | None:
        """Return the disposition of a refused entry; None, after a pause, if another try is due."""
        _logger.info("decision=%s not started: %s", entry.event_id, refusal.reason_code)
        if refusal.reason in FINAL_REFUSALS:
            return Disposition.DELETE
        if refusal.reason in REVIEW_REFUSALS:
            return Disposition.ACKNOWLEDGE
        if refusal.reason == reason_code_pb2.REASON_CODE_ALREADY_RUNNING:
            await self._consumer.pause_without_slot(min(max(refusal.retry_after_ms, RECHECK_MS_MIN), RECHECK_MS_MAX))
            return None
        if refusal.reason == reason_code_pb2.REASON_CODE_EXECUTION_VERSION_MISMATCH:
            _logger.warning("decision=%s left to executors of other versions: %s", entry.event_id, refusal.message)
            return Disposition.LEAVE
        _logger.warning("decision=%s refusal %s is unknown to this version; its entry stays pending", entry.event_id, refusal.reason_code)
        return Disposition.LEAVE

    async def _attempt(self, started: ExecutionStarted, requested_at: float) -> Envelope | None:
        """Run the handler under the lease and report the outcome. Return the recorded report; None if the lease was lost.

        An attempt that lost its lease without a result is not reported: the server's lease timer ends it.
        """
        decision = started.decision.decision
        # The action of the log, not of the queue: write access to Redis must not suffice to choose an action.
        handler = self._handlers[decision.action_type]
        context = ExecutionContext(started.decision, from_struct(decision.params), started.attempt, started.execution_id, tools=self._tools)
        _logger.info("decision=%s execution=%s attempt=%d begins", decision.decision_id, started.execution_id, started.attempt)
        began_at = now()
        handling = asyncio.create_task(_run_handler(handler, context, self._threads))
        renewal = asyncio.create_task(keep_alive(self._client, started, self._producer, self._lease_ms, requested_at))
        report: Envelope | None = None
        try:
            await asyncio.wait({handling, renewal}, timeout=handler.timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            overdue = HandlerResult.timeout("HANDLER_TIMEOUT", f"took longer than {handler.timeout_ms} ms")
            result = await _finish(handling, context, None if renewal.done() else overdue)
            recorded = None
            try:
                if result is not None:
                    report = report_envelope(started, self._producer, result, began_at, now())
                    recorded = await self._report(report)
            except Exception:
                await asyncio.wait({handling})
                raise
            # Never run two attempts at once in this process, even if the handler ignores its cancellation or its report is refused.
            await asyncio.wait({handling})
            return recorded
        except asyncio.CancelledError:
            if report is None:
                interrupted = HandlerResult.timeout("EXECUTOR_STOPPED", "the executor was stopped")
                result = await _finish(handling, context, None if renewal.done() else interrupted)
                if result is not None:
                    report = report_envelope(started, self._producer, result, began_at, now())
            if report is not None and not await try_for(LAST_REPORT_MS, self._report(report)):
                _logger.error("decision=%s execution=%s could not be reported before the stop", decision.decision_id, started.execution_id)
            raise
        finally:
            renewal.cancel()

    async def _report(self, report: Envelope) -> Envelope:
        """Send a report until the server accepts or refuses it, even during a stop, so that no outcome is lost."""
        execution = report.execution
        try:
            response = await self._consumer.call_through_stop(self._client.report_execution, report)
        except GavelError as error:
            if not error.violations or execution.error.code == INVALID_RESULT:
                _logger.error(
                    "decision=%s execution=%s the report %s was refused: %s",
                    execution.decision_id,
                    execution.execution_id,
                    ExecutionStatus.Name(execution.status),
                    describe_error(error),
                )
                raise
            # The action took effect all the same. The refused report is not in the log, so its event_id is free.
            return await self._report(strip_result(report, "; ".join(": ".join(violation) for violation in error.violations)))
        # Log the recorded error too, so that an operator sees the reason without a query to the server.
        outcome = " ".join(filter(None, (ExecutionStatus.Name(execution.status), execution.error.code, execution.error.message)))
        if response.envelope.WhichOneof("payload") == "execution":
            _logger.info("decision=%s execution=%s ended: %s", execution.decision_id, execution.execution_id, outcome)
        else:
            _logger.warning(
                "decision=%s execution=%s ended too late: %s; the log keeps it as %s, and a person has to decide",
                execution.decision_id,
                execution.execution_id,
                outcome,
                response.envelope.event_name,
            )
        return response.envelope

    async def _maintain_queue(self) -> None:
        """Trim entries of ended decisions from the queue, and begin decisions that it has lost, for ever."""
        async for first, lost in scan_pending(self._client, self._consumer, PENDING_PHASE_APPROVED, self._scan_interval_ms):
            if self._log_confirmed:
                # All decisions before the oldest pending one have ended.
                await self._queue.trim(first)
            for one in lost:
                if one.action_type in self._handlers and one.decision_id not in self._in_progress:
                    _logger.warning("decision=%s has not begun and its queue entry is lost; beginning it", one.decision_id)
                    entry = Envelope(event_id=one.decision_id, sequence_number=one.sequence_number)
                    entry.decision.action_type = one.action_type
                    await self._consumer.submit(f"{one.sequence_number}-0", partial(self._carry_out, entry, from_queue=False))


def retry_pause_ms(policy: RetryPolicy, attempts: int, decision_id: str) -> float:
    """Return the pause after `attempts` failed attempts, in milliseconds, by the decision's retry policy (constitution §7.1).

    Jitter removes up to half, so that decisions that failed together are not retried together. The jitter is the first 8 bytes of
    SHA-256 over "DECISION_ID:ATTEMPTS", so that a reader of the log can recompute the pause.
    """
    pause = float(policy.backoff_initial_ms)
    for _ in range(attempts - 1):
        pause = min(pause * policy.backoff_multiplier, policy.backoff_max_ms)
    jitter = hashlib.sha256(f"{decision_id}:{attempts}".encode()).digest()[:8]
    return min(pause, policy.backoff_max_ms) * (1 - int.from_bytes(jitter, "big") / 2**65)


async def _run_handler(handler: ActionHandler, context: ExecutionContext, threads: ThreadPoolExecutor) -> HandlerResult:
    """Call a handler, in a task of its own, so that its exceptions are its outcome and not the executor's."""
    try:
        if handler.is_coroutine_function:
            answer: Any = handler.handle(context)
        else:
            answer = await _run_in_thread(handler, context, threads)
        return await answer if inspect.isawaitable(answer) else answer  # type: ignore[no-any-return]  # handler_result checks it
    except SystemExit as error:
        # asyncio would end the process, and all other attempts with it. An exit of a handler ends its own attempt only.
        raise HandlerError(HANDLER_EXCEPTION, describe_error(error)) from error


async def _run_in_thread(handler: ActionHandler, context: ExecutionContext, threads: ThreadPoolExecutor) -> Any:
    """Call a plain function in a thread. The task ends only with the thread, which may act until then, even if the task is cancelled."""
    running = threads.submit(contextvars.copy_context().run, call_plain, handler.handle, context)
    waiting = asyncio.wrap_future(running)
    while True:
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            if running.cancel():
                raise
            if waiting.done():
                return waiting.result()
            _logger.info("execution=%s must stop; its thread is asked to", context.execution_id)


async def _finish(task: asyncio.Future[HandlerResult], context: ExecutionContext, default: HandlerResult | None) -> HandlerResult | None:
    """Return the handler's result. Cancel a handler that still runs; if it then returns no HandlerResult, return `default`."""
    if task.done():
        return handler_result(task)
    context.cancellation.set()
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_GRACE_MS / 1000)
    if not task.done():
        _logger.error("a handler ignores its cancellation and still runs")
        return default
    if task.cancelled() or task.exception() is not None or not isinstance(task.result(), HandlerResult):
        return default
    return task.result()

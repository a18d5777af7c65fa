"""The executor runtime: carries out approved decisions, each as the log allows (seeds 002 §7).

It takes decisions from the work queue and, for each: begins an attempt, runs the action's handler under the attempt's lease, and
reports how it ended, until the log says that the decision has come to its end. The server is the only judge: the queue's entry
merely names a decision, and what is carried out is what BeginExecution returned. An executor that cannot reach the server
does not act, and one that cannot keep its lease stops acting before it lapses.

An entry leaves the queue for good once the decision has ended in the log, whoever ended it. While a person has to look at it, it
is only acknowledged: one more attempt, if they grant it, is another entry. An entry whose action has no handler here stays pending for
another member of the group, so nothing is lost where executors with different handlers share one; a group for each kind spares
them the wait. What ended without an executor (expired, revoked) is trimmed once in a while.

Decisions that nobody has begun and whose entry the queue has lost are taken up too (`lookout`). BeginExecution makes that safe: however
many executors come upon a decision, and whether its entry turns up after all, one attempt begins.

There are no retries of its own making: another attempt follows only where the server said so (`will_retry`), after the pause that
the decision's retry policy names, or where a lease has lapsed.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from gavel.v1.common_pb2 import PRODUCER_TYPE_EXECUTOR, Producer
from gavel.v1.decision_pb2 import RetryPolicy
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.execution_pb2 import ExecutionStatus
from gavel.v1.execution_service_pb2 import BeginExecutionResponse, ExecutionRefusal, ExecutionStarted
from gavel.v1.projection_service_pb2 import PENDING_PHASE_APPROVED

from gavel_client.client import GavelClient
from gavel_client.consumer import STOP_GRACE_MS_DEFAULT, Consumer, Statistics, Verdict, try_for
from gavel_client.errors import GavelError, HandlerError, where_and_what
from gavel_client.handlers import ActionHandler, ExecutionContext, HandlerResult
from gavel_client.lease import keep_lease
from gavel_client.lookout import LOOK_INTERVAL_MS_DEFAULT, looks
from gavel_client.reports import HANDLER_EXCEPTION, INVALID_RESULT, now, report_envelope, result_of, without_result
from gavel_client.values import from_struct
from gavel_client.work_queue import DECISIONS, MIN_IDLE_MS_DEFAULT, WorkQueue

GROUP_DEFAULT: Final = "executors"
LEASE_MS_DEFAULT: Final = 30_000
CONCURRENCY_DEFAULT: Final = 8
# How long a cancelled handler may take to stop, and how long the last report of a stopping executor may.
CANCEL_GRACE_MS: Final = 5_000
LAST_REPORT_MS: Final = 3_000
# Bounds of the pause before asking again whether somebody else's lease has lapsed; it may have been reported long before.
RECHECK_MS_MIN: Final = 100
RECHECK_MS_MAX: Final = 30_000

# Refusals after which nobody has anything to do with the decision any more, and those where a person has.
ENDED: Final = frozenset({"STALE_FACT", "FACT_SUPERSEDED", "EXPIRED", "REVOKED", "ALREADY_FINISHED", "NOT_APPROVED"})
WITH_A_PERSON: Final = frozenset({"UNDER_REVIEW", "RETRY_FACTS_CHANGED"})

_logger = logging.getLogger(__name__)


class Executor:
    """Carries out approved decisions of `client.bus` with `handlers`, at most `concurrency` at a time.

    `redis_url` names the Redis of the bus. `producer_id` is the executor's stable name in the log; processes that carry out the
    same actions may share it and their `group`. `run` once; `stop` from anywhere in the same event loop.
    """

    def __init__(
        self,
        client: GavelClient,
        redis_url: str,
        handlers: Mapping[str, ActionHandler],
        *,
        producer_id: str,
        producer_version: str = "",
        group: str = GROUP_DEFAULT,
        concurrency: int = CONCURRENCY_DEFAULT,
        lease_ms: int = LEASE_MS_DEFAULT,
        min_idle_ms: int = MIN_IDLE_MS_DEFAULT,
        look_interval_ms: int = LOOK_INTERVAL_MS_DEFAULT,
        stop_grace_ms: int = STOP_GRACE_MS_DEFAULT,
    ) -> None:
        if not handlers:
            raise ValueError("an executor needs at least one handler; register them with Handlers.action")
        self._client = client
        self._handlers = handlers
        self._producer = Producer(type=PRODUCER_TYPE_EXECUTOR, id=producer_id, version=producer_version)
        self._lease_ms = lease_ms
        self._look_interval_ms = look_interval_ms
        self._queue = WorkQueue(redis_url, queue=DECISIONS, group=group, bus=client.bus, min_idle_ms=min_idle_ms)
        self._consumer = Consumer(
            self._queue, self._process, concurrency=concurrency, stop_grace_ms=stop_grace_ms, chore=self._look_after_for_ever
        )
        # Set once the server has known a decision from this queue: proof that both belong to one log.
        self._same_log = False
        self._under_way: set[str] = set()  # decision_ids
        self._left_to_others: set[str] = set()  # action types, each said once

    @property
    def statistics(self) -> Statistics:
        """What has been processed so far."""
        return self._consumer.statistics

    async def run(self) -> None:
        """Carry out decisions until `stop`. Raises WorkQueueError if the work queue cannot be used."""
        await self._consumer.run()

    def stop(self) -> None:
        """Begin nothing more. Handlers get `stop_grace_ms` to end; those that do not are cancelled and reported as TIMEOUT."""
        self._consumer.stop()

    async def _process(self, queued: Envelope) -> Verdict:
        """Carry out the decision of an entry, unless that is somebody else's."""
        if queued.decision.action_type not in self._handlers:
            if queued.decision.action_type not in self._left_to_others:
                self._left_to_others.add(queued.decision.action_type)
                _logger.info("decision=%s action=%s has no handler here; left to others", queued.event_id, queued.decision.action_type)
            return Verdict.LEAVE
        if queued.event_id in self._under_way:
            return Verdict.LEAVE  # it was missed, and taken up
        return await self._carry_out(queued, from_queue=True)

    async def _carry_out(self, queued: Envelope, *, from_queue: bool) -> Verdict:
        """Carry out one decision until it ends or is somebody else's."""
        self._under_way.add(queued.event_id)
        try:
            return await self._attempt_until_over(queued, from_queue)
        finally:
            self._under_way.discard(queued.event_id)

    async def _attempt_until_over(self, queued: Envelope, from_queue: bool) -> Verdict:
        while True:
            await self._consumer.pause(0)  # nothing begins after a stop
            asked_at, begun = await self._begin(queued)
            if begun is None:
                return Verdict.DELETE
            self._same_log = self._same_log or from_queue
            if begun.WhichOneof("result") == "refusal":
                verdict = await self._refused(queued, begun.refusal)
                if verdict is not None:
                    return verdict
                continue
            report = await self._attempt(begun.started, asked_at)
            if report is None or report.WhichOneof("payload") != "execution":
                continue  # the lease was lost, or the report came too late: the server says what follows
            if not report.execution.will_retry:
                return Verdict.DELETE
            policy = begun.started.decision.decision.retry_policy
            await self._consumer.rest(retry_pause_ms(policy, report.execution.attempt, queued.event_id))

    async def _begin(self, queued: Envelope) -> tuple[float, BeginExecutionResponse | None]:
        """Ask to start an attempt. Returns when it was asked (monotonic) and the answer; None: the decision ended long ago."""
        asked_at = 0.0

        async def begin() -> BeginExecutionResponse:
            nonlocal asked_at
            asked_at = time.monotonic()
            return await self._client.begin_execution(queued.event_id, producer=self._producer, lease_ms=self._lease_ms)

        try:
            begun = await self._consumer.persist(begin)
        except GavelError as error:
            if error.reason != "DECISION_NOT_FOUND":
                raise
            # The bus forgets the ids of what ended. An entry of another bus or another Redis must not be deleted for that.
            response = await self._consumer.persist(self._client.get_event, sequence_number=queued.sequence_number)
            if response.envelope.event_id != queued.event_id:
                raise
            return asked_at, None
        return asked_at, begun

    async def _refused(self, queued: Envelope, refusal: ExecutionRefusal) -> Verdict | None:
        """Return what a refusal makes of the entry; None, after a pause, if it is worth asking again."""
        _logger.info("decision=%s not started: %s", queued.event_id, refusal.reason_code)
        if refusal.reason_code in ENDED:
            return Verdict.DELETE
        if refusal.reason_code in WITH_A_PERSON:
            return Verdict.ACKNOWLEDGE
        if refusal.reason_code == "ALREADY_RUNNING":
            await self._consumer.rest(min(max(refusal.retry_after_ms, RECHECK_MS_MIN), RECHECK_MS_MAX))
            return None
        _logger.warning("decision=%s refusal %s is not known to this version", queued.event_id, refusal.reason_code)
        return Verdict.LEAVE

    async def _attempt(self, started: ExecutionStarted, asked_at: float) -> Envelope | None:
        """Run the handler under the lease and report how it ended. Returns the recorded report; None if the lease was lost.

        Nothing is reported of an attempt that lost its lease and has nothing to say: the server's lease timer speaks for it.
        """
        decision = started.decision.decision
        # The action of the log, not of the queue: whoever can write to Redis must not choose what is done.
        handler = self._handlers[decision.action_type]
        context = ExecutionContext(started.decision, from_struct(decision.params), started.attempt, started.execution_id)
        _logger.info("decision=%s execution=%s attempt=%d begins", decision.decision_id, started.execution_id, started.attempt)
        began_at = now()
        running = asyncio.create_task(_call(handler, context))
        keeping = asyncio.create_task(keep_lease(self._client, started, self._producer, self._lease_ms, asked_at))
        report: Envelope | None = None
        try:
            await asyncio.wait({running, keeping}, timeout=handler.timeout_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
            overdue = HandlerResult.timeout("HANDLER_TIMEOUT", f"took longer than {handler.timeout_ms} ms")
            result = await _end(running, None if keeping.done() else overdue)
            recorded = None
            if result is not None:
                report = report_envelope(started, self._producer, result, began_at, now())
                recorded = await self._record(report)
            if not running.done():
                # Never two attempts at once in this process, whatever the handler makes of its cancellation.
                await asyncio.wait({running})
            return recorded
        except asyncio.CancelledError:
            if report is None:
                cut_off = HandlerResult.timeout("EXECUTOR_STOPPED", "the executor was stopped")
                result = await _end(running, None if keeping.done() else cut_off)
                if result is not None:
                    report = report_envelope(started, self._producer, result, began_at, now())
            if report is not None and not await try_for(LAST_REPORT_MS, self._record(report)):
                _logger.error("decision=%s execution=%s could not be reported before the stop", decision.decision_id, started.execution_id)
            raise
        finally:
            keeping.cancel()

    async def _record(self, report: Envelope) -> Envelope:
        """Send a report until the server has judged it, through a stop too: what happened must not go unsaid."""
        execution = report.execution
        try:
            response = await self._consumer.persist_through_stop(self._client.report_execution, report)
        except GavelError as error:
            if not error.violations or execution.error.code == INVALID_RESULT:
                _logger.error(
                    "decision=%s execution=%s the report %s was refused: %s",
                    execution.decision_id,
                    execution.execution_id,
                    ExecutionStatus.Name(execution.status),
                    where_and_what(error),
                )
                raise
            # It happened all the same. The refused report is not in the log, so its event_id is free.
            return await self._record(without_result(report, "; ".join(": ".join(violation) for violation in error.violations)))
        # The error as the log has it: whoever runs the executor sees why without asking the server.
        ended = " ".join(filter(None, (ExecutionStatus.Name(execution.status), execution.error.code, execution.error.message)))
        if response.envelope.WhichOneof("payload") == "execution":
            _logger.info("decision=%s execution=%s ended: %s", execution.decision_id, execution.execution_id, ended)
        else:
            _logger.warning(
                "decision=%s execution=%s ended too late: %s; the log keeps it as %s, and a person has to look",
                execution.decision_id,
                execution.execution_id,
                ended,
                response.envelope.event_name,
            )
        return response.envelope

    async def _look_after_for_ever(self) -> None:
        """Again and again: delete from the queue what is over, and take up what it has lost."""
        async for first, lost in looks(self._client, self._consumer, PENDING_PHASE_APPROVED, self._look_interval_ms):
            if self._same_log:
                # Before the oldest decision that has not come to its end there is nothing left to do.
                await self._queue.trim(first)
            for one in lost:
                if one.action_type in self._handlers and one.decision_id not in self._under_way:
                    _logger.warning("decision=%s nobody has begun it, and no entry of the queue brings it; taking it up", one.decision_id)
                    named = Envelope(event_id=one.decision_id, sequence_number=one.sequence_number)
                    named.decision.action_type = one.action_type
                    await self._consumer.bring(f"{one.sequence_number}-0", partial(self._carry_out, named, from_queue=False))


def retry_pause_ms(policy: RetryPolicy, attempts: int, decision_id: str) -> float:
    """Return the pause after `attempts` failed attempts, in milliseconds, as the decision's retry policy names it (seeds 002 §7.1).

    Jitter takes away up to half, so that decisions that failed together do not come back together. It follows from what the log
    has (the first 8 bytes of SHA-256 over "DECISION_ID:ATTEMPTS"), so whoever reads the log can work the pause out again.
    """
    pause = float(policy.backoff_initial_ms)
    for _ in range(attempts - 1):
        pause = min(pause * policy.backoff_multiplier, policy.backoff_max_ms)
    drawn = hashlib.sha256(f"{decision_id}:{attempts}".encode()).digest()[:8]
    return min(pause, policy.backoff_max_ms) * (1 - int.from_bytes(drawn, "big") / 2**65)


async def _call(handler: ActionHandler, context: ExecutionContext) -> HandlerResult:
    """Call a handler inside its own task, so that whatever it raises, or is not, is its outcome and not the runtime's.

    What has acted and is no coroutine has acted all the same: what it returned is its word, as of any handler.
    """
    try:
        answer: Any = handler.handle(context)
        return await answer if inspect.isawaitable(answer) else answer  # type: ignore[no-any-return]  # result_of looks at it
    except SystemExit as error:
        # asyncio would end the process with it, and everybody else's work: a handler, or a library under it, gives up for itself alone.
        raise HandlerError(HANDLER_EXCEPTION, where_and_what(error)) from error


async def _end(running: asyncio.Future[HandlerResult], otherwise: HandlerResult | None) -> HandlerResult | None:
    """Return how the handler ended, after cancelling it if it has not; `otherwise` if it does not say.

    A handler that is cancelled may still return what it has done. What else it does then says nothing.
    """
    if running.done():
        return result_of(running)
    running.cancel()
    await asyncio.wait({running}, timeout=CANCEL_GRACE_MS / 1000)
    if not running.done():
        _logger.error("a handler does not heed its cancellation; it still runs")
        return otherwise
    if running.cancelled() or running.exception() is not None or not isinstance(running.result(), HandlerResult):
        return otherwise
    return running.result()

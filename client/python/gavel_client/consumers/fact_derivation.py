"""The fact derivation reactor (FDR): it derives facts from reports of executions (constitution §4.7.3, §7.2).

For every report in the work queue it reads the decision and its rule set, calls the pure function `gavel_rules.derivation.derive`
and publishes each fact. The facts' event_ids are hashes of the execution. The reactor may therefore process an execution twice,
crash halfway or run in several processes without an effect on the log. The server derives the facts again and refuses any
difference.

The reactor never drops an execution. While the server is unavailable it waits; a refusal is logged as an error, counted
(`statistics.failed`) and left pending for another delivery. The queue `work:executions` is the reactor's alone; other readers of
executions subscribe to the log. Reports whose queue entry is lost are read from the log (`pending_work`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import grpc
from gavel.v1.common_pb2 import EVENT_CATEGORY_DECISION_EVENT, EVENT_CATEGORY_EXECUTION_EVENT
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ListEventsResponse
from gavel.v1.execution_pb2 import EXECUTION_STATUS_STARTED
from gavel.v1.projection_service_pb2 import PENDING_PHASE_AWAITING_FACTS, PendingDecision
from gavel_rules.derivation import derive
from gavel_rules.language.rule_set import CompiledRuleSet, compile_rule_set

from gavel_client import consumers
from gavel_client.consumers.consumer import Consumer, Disposition, Statistics
from gavel_client.consumers.pending_work import SCAN_INTERVAL_MS_DEFAULT, scan_pending
from gavel_client.consumers.work_source import EXECUTIONS, MIN_IDLE_MS_DEFAULT, WorkSource
from gavel_client.consumers.work_stream import WorkStream
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError
from gavel_client.rpc.paging import pages

if TYPE_CHECKING:
    from redis.asyncio import ConnectionPool

GROUP: Final = "fdr"
CONCURRENCY_DEFAULT: Final = 32
RULE_SETS_CACHED_MAX: Final = 32

_logger = logging.getLogger(__name__)


class FactDerivationReactor:
    """Derives the facts of `client.bus`. Call `run` once; call `stop` in the same event loop.

    Reports come over gRPC, or with `redis_url` from the bus's Redis itself. The owner of `wakeup`, if given, sets it whenever an
    execution has been recorded; the owner of `connections` closes them. Both are for Redis: see WorkQueue.
    """

    def __init__(
        self,
        client: GavelClient,
        *,
        redis_url: str = "",
        concurrency: int = CONCURRENCY_DEFAULT,
        min_idle_ms: int = MIN_IDLE_MS_DEFAULT,
        scan_interval_ms: int = SCAN_INTERVAL_MS_DEFAULT,
        wakeup: asyncio.Event | None = None,
        connections: ConnectionPool | None = None,
        has_pending: Callable[[], bool] = lambda: True,
    ) -> None:
        self._client = client
        self._has_pending = has_pending
        self._scan_interval_ms = scan_interval_ms
        self._wakeup = wakeup
        self._submitted: set[tuple[str, int]] = set()  # lost decisions, by id and last sequence number
        self._rule_sets: dict[str, CompiledRuleSet] = {}  # by digest
        self._compiling = asyncio.Lock()
        queue: WorkSource = (
            consumers.WorkQueue(
                redis_url, queue=EXECUTIONS, group=GROUP, bus=client.bus, min_idle_ms=min_idle_ms, wakeup=wakeup, connections=connections
            )
            if redis_url
            else WorkStream(client, queue=EXECUTIONS, group=GROUP, concurrency=concurrency, min_idle_ms=min_idle_ms)
        )
        self._consumer = Consumer(queue, self._process, concurrency=concurrency, maintenance=self._derive_lost)

    @property
    def statistics(self) -> Statistics:
        """The counts of processed entries. A growing `failed` requires an operator."""
        return self._consumer.statistics

    @property
    def problem(self) -> str:
        """The reason why the reactor cannot take work now, as a sentence, or ""."""
        return self._consumer.problem

    async def run(self) -> None:
        """Derive facts until `stop`. Raises WorkQueueError if the settings of the work queue are wrong."""
        await self._consumer.run()

    def stop(self) -> None:
        """Take no more executions; those in progress end."""
        self._consumer.stop()
        if self._wakeup is not None:
            self._wakeup.set()

    async def _process(self, execution: Envelope) -> Disposition:
        """Publish the facts of one execution."""
        if execution.execution.status == EXECUTION_STATUS_STARTED:
            return Disposition.DELETE  # STARTED derives no fact
        decision = await self._decision(execution)
        for fact in derive(execution, decision, await self._rule_set(decision)):
            await self._consumer.call(self._client.publish_event, fact)
            _logger.debug("execution=%s fact=%s rule=%s", execution.event_id, fact.event_id, fact.fact.derivation_rule_id)
        return Disposition.DELETE

    async def _derive_lost(self) -> None:
        """Derive the facts of decisions whose reports the queue has lost, for ever."""
        scans = scan_pending(self._client, self._consumer, PENDING_PHASE_AWAITING_FACTS, self._scan_interval_ms, self._has_pending)
        async for _, lost in scans:
            # A decision that is pending after its facts were derived waits for a person or for facts from elsewhere.
            self._submitted &= {(one.decision_id, one.last_sequence_number) for one in lost}
            for one in lost:
                if (one.decision_id, one.last_sequence_number) not in self._submitted:
                    self._submitted.add((one.decision_id, one.last_sequence_number))
                    await self._consumer.submit(f"{one.last_sequence_number}-0", partial(self._derive_reports, one))

    async def _derive_reports(self, decision: PendingDecision) -> Disposition:
        """Publish the facts of every report of a decision; facts that the log already has stay unchanged."""
        try:
            async for execution in self._reports(decision):
                _logger.warning("execution=%s has no facts and its queue entry is lost; deriving them", execution.event_id)
                await self._process(execution)
        except Exception:
            self._submitted.discard((decision.decision_id, decision.last_sequence_number))
            raise
        return Disposition.LEAVE

    async def _reports(self, decision: PendingDecision) -> AsyncIterator[Envelope]:
        async for page in self._events(
            categories=[EVENT_CATEGORY_EXECUTION_EVENT],
            trace_id=decision.trace_id,
            from_sequence_number=decision.sequence_number,
            to_sequence_number=decision.last_sequence_number,
        ):
            for execution in page.envelopes:
                if execution.execution.decision_id == decision.decision_id and execution.execution.status != EXECUTION_STATUS_STARTED:
                    yield execution

    def _events(self, **filters: object) -> AsyncIterator[ListEventsResponse]:
        return pages(partial(self._consumer.call, self._client.list_events), **filters)

    async def _rule_set(self, decision: Envelope) -> CompiledRuleSet | None:
        """Return the compiled rule set of a decision; None for a decision of Gavel's own."""
        digest = decision.decision.rule_set_digest
        if not digest:
            return None
        async with self._compiling:
            rule_set = self._rule_sets.pop(digest, None) or await self._read_rule_set(decision.decision)
            self._rule_sets[digest] = rule_set  # moved to the end: the least recently used one is evicted first
            while len(self._rule_sets) > RULE_SETS_CACHED_MAX:
                del self._rule_sets[next(iter(self._rule_sets))]
        return rule_set

    async def _read_rule_set(self, decision: Decision) -> CompiledRuleSet:
        """Read and compile a decision's rule set. Raises GavelError if the server's version has another digest."""
        policy_id, version = decision.policy_id, decision.policy_version
        response = await self._consumer.call(self._client.get_rule_set, policy_id, version=version)
        rule_set = await asyncio.to_thread(compile_rule_set, response.canonical_json)
        if rule_set.digest != decision.rule_set_digest:
            problem = f"version {version} of rule set {policy_id} has digest {rule_set.digest}, the decision {decision.rule_set_digest}"
            raise GavelError(grpc.StatusCode.DATA_LOSS, "", problem)
        return rule_set

    async def _decision(self, execution: Envelope) -> Envelope:
        """Read the decision of an execution: by its id or, once the bus has forgotten it, from their common trace."""
        decision_id = execution.execution.decision_id
        try:
            response = await self._consumer.call(self._client.get_event, event_id=decision_id)
            return response.envelope
        except GavelError as error:
            if error.reason != "EVENT_NOT_FOUND":
                raise
            not_found = error
        async for page in self._events(
            categories=[EVENT_CATEGORY_DECISION_EVENT], trace_id=execution.trace_id, to_sequence_number=execution.sequence_number
        ):
            for envelope in page.envelopes:
                if envelope.event_id == decision_id:
                    return envelope
        raise not_found

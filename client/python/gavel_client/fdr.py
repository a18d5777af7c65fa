"""The fact derivation reactor (FDR): reports of executions become facts (seeds 002 §4.7.3, §7.2).

For every report in the work queue it reads the decision and the rule set that made it, calls the pure
`gavel_rules.derivation.derive`, and publishes each fact.
The facts' event_ids follow from the execution, so it may see an execution twice, crash half way or run in several processes
without a trace in the log. The server derives the same again and refuses any difference.

It never gives an execution up: while the server is away it waits, and what the server refuses is logged as an error, counted
(`statistics.failed`) and left pending, to be met again. `work:executions` belongs to the reactor; whoever else wants executions
subscribes to the log. Reports whose entry the queue has lost are read from the log (`lookout`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import grpc
from gavel.v1.common_pb2 import EVENT_CATEGORY_DECISION_EVENT, EVENT_CATEGORY_EXECUTION_EVENT
from gavel.v1.decision_pb2 import Decision
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import ListEventsResponse
from gavel.v1.execution_pb2 import EXECUTION_STATUS_STARTED
from gavel.v1.projection_service_pb2 import PENDING_PHASE_AWAITING_FACTS, PendingDecision
from gavel_rules.derivation import derive
from gavel_rules.language.ruleset import CompiledRuleSet, compile_rule_set

from gavel_client.client import GavelClient
from gavel_client.consumer import Consumer, Statistics, Verdict
from gavel_client.errors import GavelError
from gavel_client.lookout import LOOK_INTERVAL_MS_DEFAULT, looks
from gavel_client.paging import pages
from gavel_client.work_queue import EXECUTIONS, MIN_IDLE_MS_DEFAULT, WorkQueue

GROUP: Final = "fdr"
CONCURRENCY_DEFAULT: Final = 32
RULE_SETS_KEPT_MAX: Final = 32

_logger = logging.getLogger(__name__)


class FactDerivationReactor:
    """Derives the facts of `client.bus`, whose Redis `redis_url` names. `run` once; `stop` from anywhere in the same event loop.

    `news`, where given, is set by the server itself whenever an execution has been recorded; see WorkQueue.
    """

    def __init__(
        self,
        client: GavelClient,
        redis_url: str,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        min_idle_ms: int = MIN_IDLE_MS_DEFAULT,
        look_interval_ms: int = LOOK_INTERVAL_MS_DEFAULT,
        news: asyncio.Event | None = None,
    ) -> None:
        self._client = client
        self._look_interval_ms = look_interval_ms
        self._news = news
        self._taken_up: set[tuple[str, int]] = set()  # decisions, each with its last event then
        self._rule_sets: dict[str, CompiledRuleSet] = {}  # by digest
        self._compiling = asyncio.Lock()
        queue = WorkQueue(redis_url, queue=EXECUTIONS, group=GROUP, bus=client.bus, min_idle_ms=min_idle_ms, news=news)
        self._consumer = Consumer(queue, self._process, concurrency=concurrency, chore=self._look_after_for_ever)

    @property
    def statistics(self) -> Statistics:
        """What has been processed so far. A growing `failed` needs an operator."""
        return self._consumer.statistics

    async def run(self) -> None:
        """Derive facts until `stop`. Raises WorkQueueError if the work queue cannot be used."""
        await self._consumer.run()

    def stop(self) -> None:
        """Take no more executions; those under way end."""
        self._consumer.stop()
        if self._news is not None:
            self._news.set()

    async def _process(self, execution: Envelope) -> Verdict:
        """Publish the facts of one execution."""
        if execution.execution.status == EXECUTION_STATUS_STARTED:
            return Verdict.DELETE  # as every STARTED, without asking for its decision
        decision = await self._decision(execution)
        for fact in derive(execution, decision, await self._rule_set(decision)):
            await self._consumer.persist(self._client.publish_event, fact)
            _logger.debug("execution=%s fact=%s rule=%s", execution.event_id, fact.event_id, fact.fact.derivation_rule_id)
        return Verdict.DELETE

    async def _look_after_for_ever(self) -> None:
        """Again and again: derive the facts of what is finally reported and waits for them."""
        async for _, lost in looks(self._client, self._consumer, PENDING_PHASE_AWAITING_FACTS, self._look_interval_ms):
            # What was derived, and waits all the same, waits for somebody else's facts, or for a person.
            self._taken_up &= {(one.decision_id, one.last_sequence_number) for one in lost}
            for one in lost:
                if (one.decision_id, one.last_sequence_number) not in self._taken_up:
                    self._taken_up.add((one.decision_id, one.last_sequence_number))
                    await self._consumer.bring(f"{one.last_sequence_number}-0", partial(self._take_up, one))

    async def _take_up(self, decision: PendingDecision) -> Verdict:
        """Publish the facts of every report of a decision; those that the log has stay as they are."""
        try:
            async for execution in self._reports(decision):
                _logger.warning("execution=%s its facts are missing, and no entry of the queue brings it", execution.event_id)
                await self._process(execution)
        except Exception:
            self._taken_up.discard((decision.decision_id, decision.last_sequence_number))
            raise
        return Verdict.LEAVE

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
        return pages(partial(self._consumer.persist, self._client.list_events), **filters)

    async def _rule_set(self, decision: Envelope) -> CompiledRuleSet | None:
        """Return the rule set that made a decision, compiled; None for a decision of Gavel's own."""
        digest = decision.decision.rule_set_digest
        if not digest:
            return None
        async with self._compiling:
            rule_set = self._rule_sets.pop(digest, None) or await self._compiled(decision.decision)
            self._rule_sets[digest] = rule_set  # last: the one that was not used for longest goes first
            while len(self._rule_sets) > RULE_SETS_KEPT_MAX:
                del self._rule_sets[next(iter(self._rule_sets))]
        return rule_set

    async def _compiled(self, decision: Decision) -> CompiledRuleSet:
        """Read and compile the rule set that made a decision. Raises GavelError if the server has another one under its version."""
        policy_id, version = decision.policy_id, decision.policy_version
        response = await self._consumer.persist(self._client.get_rule_set, policy_id, version=version)
        rule_set = await asyncio.to_thread(compile_rule_set, response.canonical_json)
        if rule_set.digest != decision.rule_set_digest:
            problem = f"version {version} of rule set {policy_id} has digest {rule_set.digest}, the decision {decision.rule_set_digest}"
            raise GavelError(grpc.StatusCode.DATA_LOSS, "", problem)
        return rule_set

    async def _decision(self, execution: Envelope) -> Envelope:
        """Read the decision that was carried out: by its id or, once the bus has forgotten that, from the trace they share."""
        decision_id = execution.execution.decision_id
        try:
            response = await self._consumer.persist(self._client.get_event, event_id=decision_id)
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

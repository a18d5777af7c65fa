"""The collector of facts: it fetches the facts that decisions lack, and publishes them (constitution §4.8).

For every FactCollectionRequested in the queue of requests it calls the collector of each requested key that it has, and publishes the
answer as a FACT of its producer, dated when the collector was called. The fact's event_id is a hash of the request, so that a request that
is delivered twice gives one fact.

    collectors = {"order.status": read_status}

    async def read_status(subject: str, key: str) -> object:
        return await orders.status(subject.removeprefix("order/"))

A collector that raises, or takes too long, leaves the request for a later delivery; after too many deliveries the server parks it
(`gavel work`). A request of keys that have no collector here is acknowledged: collectors of other keys use other groups.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Final

from gavel.v1.common_pb2 import Producer
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope

from gavel_client.consumers.consumer import STOP_GRACE_MS_DEFAULT, Consumer, Disposition, Statistics
from gavel_client.consumers.work_stream import POSTPONEMENT_MS_DEFAULT, REQUESTS, WorkStream
from gavel_client.envelopes import fact_envelope
from gavel_client.rpc.backoff import try_once
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelClientError, GavelError
from gavel_client.timeouts import timeout

KIND: Final = "FactCollectionRequested"
GROUP_DEFAULT: Final = "collectors"
CONCURRENCY_DEFAULT: Final = 8
TIMEOUT_MS_DEFAULT: Final = 30_000

Collector = Callable[[str, str], Awaitable[object]]
"""Returns the value of a key of a subject, a JSON value; None: the source says that there is none. Raises if it cannot tell."""

# The namespace of the facts' UUIDv5 (RFC 9562 §5.5).
_FACTS: Final = uuid.UUID("0b3d0c2e-52a7-4c0f-8d0e-6a0b5d1f7c44")

_logger = logging.getLogger(__name__)


class FactCollector:
    """Collects facts of `client.bus` as `producer`, with `collectors` by fact key. Call `run` once; call `stop` in the same event loop.

    A key is collected only for rules that accept the producer as its source. A call of a collector is cancelled after `timeout_ms`, and has
    failed. `retry_ms` is the time until a request whose collector failed is delivered again, 1 ms to a day.
    """

    def __init__(
        self,
        client: GavelClient,
        collectors: Mapping[str, Collector],
        *,
        producer: Producer,
        group: str = GROUP_DEFAULT,
        concurrency: int = CONCURRENCY_DEFAULT,
        deliveries_max: int = 0,
        retry_ms: int = POSTPONEMENT_MS_DEFAULT,
        timeout_ms: int = TIMEOUT_MS_DEFAULT,
        stop_grace_ms: int = STOP_GRACE_MS_DEFAULT,
    ) -> None:
        if not collectors:
            raise ValueError("a collector of facts needs at least one key; give a collector for each key that this source knows")
        self._client = client
        self._collectors = collectors
        self._producer = producer
        self._timeout_ms = timeout_ms
        queue = WorkStream(
            client,
            queue=REQUESTS,
            group=group,
            concurrency=concurrency,
            kinds=[KIND],
            deliveries_max=deliveries_max,
            min_idle_ms=retry_ms,
        )
        self._consumer = Consumer(queue, self._process, concurrency=concurrency, stop_grace_ms=stop_grace_ms)

    @property
    def statistics(self) -> Statistics:
        """The counts of processed requests."""
        return self._consumer.statistics

    @property
    def problem(self) -> str:
        """The reason why no request can be taken now, as a sentence, or ""."""
        return self._consumer.problem

    async def run(self) -> None:
        """Collect facts until `stop`. Raises WorkQueueError if the server refuses the group or its settings."""
        await self._consumer.run()

    def stop(self) -> None:
        """Take no more requests; those in progress end."""
        self._consumer.stop()

    async def _process(self, request: Envelope) -> Disposition:
        """Publish the requested facts that have a collector here."""
        requirements = request.agent_diagnostic.fact_collection.fact_requirements
        ours = [one for one in requirements if one.key in self._collectors and self._is_source(one)]
        for subject, key in dict.fromkeys((one.subject or request.subject, one.key) for one in ours):
            await self._collect(request, subject, key)
        return Disposition.DELETE

    def _is_source(self, requirement: FactRequirement) -> bool:
        return not requirement.sources or self._producer.id in requirement.sources

    async def _collect(self, request: Envelope, subject: str, key: str) -> None:
        # The value is read after this, and after the request was recorded if this clock is behind that of the bus.
        read_at = max(datetime.now(timezone.utc), request.recorded_at.ToDatetime(timezone.utc))
        try:
            async with timeout(self._timeout_ms / 1000):
                value = await self._collectors[key](subject, key)
        except asyncio.TimeoutError:
            raise GavelClientError(f"the collector of {key} did not answer within {self._timeout_ms} ms") from None
        fact = fact_envelope(
            subject,
            self._producer,
            key=key,
            value=value,
            event_id=str(uuid.uuid5(_FACTS, f"{request.bus}/{request.event_id}/{subject}/{key}")),
            occurred_at=read_at,
            trace_id=request.trace_id,
            causation_id=request.event_id,
        )
        try:
            await self._publish(fact)
        except GavelError as error:
            if error.reason != "EVENT_ID_REUSED":
                raise
            _logger.warning("request=%s fact=%s was published before, perhaps with another value", request.event_id, fact.event_id)
            return
        _logger.info("request=%s fact=%s key=%s", request.event_id, fact.event_id, key)

    async def _publish(self, fact: Envelope) -> None:
        """Publish a fact. If this clock is ahead of the bus's, send it once more without a time, so that the bus dates it.

        That is not retried: a later try would date an old value too late, so the value is collected anew.
        """
        try:
            await self._consumer.call(self._client.publish_event, fact)
        except GavelError as error:
            if all(violation.field != "envelope.occurred_at" for violation in error.violations):
                raise
            _logger.warning("fact=%s this clock is ahead of the bus's, which dates the fact", fact.event_id)
            fact.ClearField("occurred_at")
            await try_once(partial(self._client.publish_event, fact))

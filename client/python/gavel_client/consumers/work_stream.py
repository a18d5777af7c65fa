"""Work queues over gRPC: a consumer's entries come over streams of WorkService, so that it needs no access to Redis.

The server delivers each entry to one consumer of the group, keeps it for the consumer while the stream is open and the consumer sends
heartbeats, and delivers it again otherwise. It counts deliveries and parks an entry that was delivered too often (`gavel work`). It also
removes entries whose decisions have ended, so nothing here trims.

A stream holds as many entries as the consumer has slots. Entries that pause without a slot, for a retry or another executor's lease, would
use up that number; further streams make up for them. A broken stream is opened again, for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import grpc
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.work_service_pb2 import (
    WORK_QUEUE_DECISIONS,
    WORK_QUEUE_EXECUTIONS,
    WORK_QUEUE_REQUESTS,
    AcknowledgeWork,
    ConsumeRequest,
    ConsumerHeartbeat,
    OpenConsumer,
    RejectWork,
    WorkItem,
    WorkQueue,
)

from gavel_client.consumers.work_source import BLOCK_MS, BUS_DEFAULT, DECISIONS, EXECUTIONS, START
from gavel_client.rpc.backoff import BUS_POLL_MS, Backoff, is_transient, is_unopened_bus
from gavel_client.rpc.client import GavelClient
from gavel_client.rpc.errors import GavelError, WorkQueueError, describe_error
from gavel_client.timeouts import timeout

REQUESTS: Final = "requests"
NUMBER_OF_QUEUE: Final[dict[str, WorkQueue.ValueType]] = {
    DECISIONS: WORK_QUEUE_DECISIONS,
    EXECUTIONS: WORK_QUEUE_EXECUTIONS,
    REQUESTS: WORK_QUEUE_REQUESTS,
}
# The server's limits of one stream: entries, action types, and how long its consumer may be silent.
IN_FLIGHT_MAX: Final = 1_000
ACTION_TYPES_MAX: Final = 64
SILENCE_MS: Final = (1_000, 600_000)
# The server's limit on the delay until an entry is delivered again.
DELAY_MS_MAX: Final = 24 * 60 * 60 * 1_000
# An entry that could not be processed is delivered again after this time.
POSTPONEMENT_MS_DEFAULT: Final = 30_000
# Refusals of the settings or of the caller.
FATAL_CODES: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)
# How long a stream that ends may take to settle what was sent.
CLOSE_SECONDS_MAX: Final = 2.0

_logger = logging.getLogger(__name__)


class StreamEntry(NamedTuple):
    """An entry that a stream delivered."""

    entry_id: str
    item: WorkItem
    stream: _Stream

    def envelope(self) -> Envelope:
        """Return the event with its chain hash."""
        return self.item.envelope


@dataclass
class _SharedByStreams:
    """What the streams of one consumer have in common."""

    client: GavelClient
    opening: OpenConsumer
    key: str
    backoff: Backoff
    entries: asyncio.Queue[StreamEntry] = field(default_factory=asyncio.Queue)
    holders: dict[str, _Stream] = field(default_factory=dict)
    """By entry, the last stream that delivered it."""
    was_open: bool = False
    """Whether the server has ever opened a stream, and thus accepted the settings and the caller."""


class WorkStream:
    """One consumer of one work queue of `client.bus`, over gRPC. See WorkSource.

    `queue` is DECISIONS, EXECUTIONS or REQUESTS. `concurrency` is the number of entries that the consumer processes at once.
    `action_types` selects decisions, `kinds` selects requests; empty: all. After `deliveries_max` deliveries an entry is parked; 0: the
    server's default. An entry that could not be processed is delivered again after `min_idle_ms`, 1 ms to a day.
    """

    def __init__(
        self,
        client: GavelClient,
        *,
        queue: str,
        group: str,
        concurrency: int,
        action_types: Sequence[str] = (),
        kinds: Sequence[str] = (),
        deliveries_max: int = 0,
        min_idle_ms: int = POSTPONEMENT_MS_DEFAULT,
        backoff: Backoff | None = None,
    ) -> None:
        if not 1 <= min_idle_ms <= DELAY_MS_MAX:
            raise ValueError(f"entries cannot be delivered again after {min_idle_ms} ms; the server takes 1 to {DELAY_MS_MAX} ms")
        self.key = f"{client.bus or BUS_DEFAULT}:{queue}"
        self.group = group
        self.min_idle_ms = min_idle_ms
        # A suspended process keeps its connection; it must not keep its entries.
        self.silence_ms_max = min(max(min_idle_ms, SILENCE_MS[0]), SILENCE_MS[1])
        self._concurrency = min(concurrency, IN_FLIGHT_MAX)
        opening = OpenConsumer(
            bus=client.bus,
            queue=NUMBER_OF_QUEUE[queue],
            group=group,
            # More actions than the server selects by: entries of others are postponed.
            action_types=sorted(action_types) if len(action_types) <= ACTION_TYPES_MAX else (),
            kinds=kinds,
            in_flight_max=self._concurrency,
            deliveries_max=deliveries_max,
            silence_ms_max=self.silence_ms_max,
        )
        self._consumer = _SharedByStreams(client, opening, self.key, backoff or Backoff())
        self._streams: list[_Stream] = []

    @property
    def problem(self) -> str:
        """The reason why no entry can be taken now, as a sentence, or ""."""
        return next((stream.problem for stream in self._streams if stream.problem), "")

    async def read(self) -> StreamEntry | None:
        """See WorkSource. Raises WorkQueueError if the server refuses the consumer's settings."""
        if not self._streams:
            self._open()
        for stream in self._streams:
            stream.raise_fatal()
        try:
            async with timeout(BLOCK_MS / 1000):
                while True:
                    entry = await self._consumer.entries.get()
                    if entry.stream.holds(entry.entry_id):
                        return entry
        except asyncio.TimeoutError:
            return None

    async def claim(self, cursor: str) -> tuple[str, StreamEntry | None]:
        """Return no entry: the server delivers the entries that other consumers have left."""
        return START, None

    async def heartbeat(self, entry_ids: Sequence[str]) -> None:
        """Show the server that this process is not suspended. It holds the entries for as long as a stream is open."""
        for stream in self._streams:
            stream.send_heartbeat()

    async def postpone(self, entry_id: str) -> None:
        """See WorkSource."""
        reject = RejectWork(item_id=entry_id, delay_ms=self.min_idle_ms, reason="could not be processed; the consumer's log has the reason")
        self._settle(entry_id, ConsumeRequest(reject=reject))

    async def release(self, entry_id: str) -> None:
        """Do nothing: the server delivers the entry again when the stream ends."""

    async def acknowledge(self, entry_id: str) -> None:
        """See WorkSource."""
        self._settle(entry_id, ConsumeRequest(acknowledge=AcknowledgeWork(item_id=entry_id)))

    async def delete(self, entry_id: str) -> None:
        """Acknowledge the entry; the server removes it."""
        await self.acknowledge(entry_id)

    async def trim(self, sequence_number: int) -> None:
        """Do nothing: the server trims."""

    def note_pauses(self, count: int) -> None:
        """Open another stream if the streams have too little room for `concurrency` entries beside those that pause."""
        capacity = min(self._concurrency + count, IN_FLIGHT_MAX)
        if self._streams and len(self._streams) * self._concurrency < capacity:
            self._open()
        for stream in self._streams[1:]:
            if stream.is_empty and (len(self._streams) - 1) * self._concurrency >= capacity:
                self._streams.remove(stream)
                stream.cancel()

    async def leave(self) -> None:
        """See WorkSource."""

    async def close(self) -> None:
        """End the streams, once the server has settled what was sent."""
        await asyncio.gather(*(stream.close() for stream in self._streams))

    def _open(self) -> None:
        self._streams.append(_Stream(self._consumer))

    def _settle(self, entry_id: str, request: ConsumeRequest) -> None:
        holder = self._consumer.holders.pop(entry_id, None)
        if holder is not None:
            holder.send(entry_id, request)


class _Stream:
    """One stream, opened again whenever it breaks."""

    def __init__(self, consumer: _SharedByStreams) -> None:
        self.problem = ""
        self._consumer = consumer
        self._held: set[str] = set()
        self._requests: asyncio.Queue[ConsumeRequest | None] = asyncio.Queue()
        self._is_open = False
        self._closing = False
        self._running = asyncio.create_task(self._run(), name=f"work stream {consumer.key}")

    @property
    def is_empty(self) -> bool:
        """Whether the stream holds no entry."""
        return not self._held

    def holds(self, entry_id: str) -> bool:
        """Return whether the stream that delivered the entry is still open, and the entry not settled."""
        return entry_id in self._held

    def send(self, entry_id: str, request: ConsumeRequest) -> None:
        """Settle an entry. Nothing is sent if the stream has broken since: the server delivers the entry again."""
        if entry_id in self._held:
            self._held.discard(entry_id)
            self._requests.put_nowait(request)

    def send_heartbeat(self) -> None:
        """Send a heartbeat, once the stream is open."""
        if self._is_open:
            self._requests.put_nowait(ConsumeRequest(heartbeat=ConsumerHeartbeat()))

    def raise_fatal(self) -> None:
        """Raise WorkQueueError if the server has refused the settings."""
        if self._running.done() and not self._running.cancelled():
            self._running.result()

    def cancel(self) -> None:
        """End the stream now."""
        self._running.cancel()

    async def close(self) -> None:
        """End the stream; wait a moment until the server has settled what was sent."""
        self._closing = True
        self._requests.put_nowait(None)
        await asyncio.wait([self._running], timeout=CLOSE_SECONDS_MAX)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        failures = 0
        while not self._closing:
            try:
                await self._serve()
            except Exception as error:  # noqa: BLE001  no error of one stream may end the consumer for ever
                failures = failures + 1 if self.problem else 1
                await asyncio.sleep(self._judge(error, failures) / 1000)
            finally:
                for entry_id in self._held:
                    if self._consumer.holders.get(entry_id) is self:
                        del self._consumer.holders[entry_id]
                self._held = set()
                self._is_open = False
                self._requests.put_nowait(None)  # gRPC waits for the next request also after the server has ended the stream
                self._requests = asyncio.Queue()

    def _judge(self, error: Exception, failures: int) -> float:
        """Return the pause before the stream is opened again, in milliseconds. Raises WorkQueueError if that would not help.

        Once a stream has been open, only the server or what is before it has changed, which may change again: an ingress answers
        UNIMPLEMENTED while no server is behind it, and rights come and go.
        """
        refusal = error if isinstance(error, GavelError) else None
        if refusal is not None and is_unopened_bus(refusal):
            return BUS_POLL_MS
        key = self._consumer.key
        is_fatal = self._consumer.client.lacks_token if refusal is None else refusal.code in FATAL_CODES
        if is_fatal and not self._consumer.was_open:
            raise WorkQueueError(f"work queue {key} cannot be used: {describe_error(error)}") from error
        pause_ms = self._consumer.backoff.pause_ms(failures, None if refusal is None else refusal.retry_after_ms)
        self.problem = f"work queue {key}: the server does not serve it: {describe_error(error)}"
        log = _logger.warning if refusal is not None and is_transient(refusal) else _logger.error
        log("queue=%s stream broken: %s, next try in %d ms", key, describe_error(error), pause_ms)
        return pause_ms

    async def _serve(self) -> None:
        """Take entries until the server or `close` ends the stream. Raises GavelError."""
        requests, consumer = self._requests, self._consumer

        async def sent() -> AsyncIterator[ConsumeRequest]:
            yield ConsumeRequest(open=consumer.opening)
            while (request := await requests.get()) is not None:
                yield request

        async with aclosing(consumer.client.consume(sent())) as responses:
            async for response in responses:
                if response.WhichOneof("item") == "opened":
                    consumer.was_open = self._is_open = True
                    if self.problem:
                        _logger.info("queue=%s stream open again", consumer.key)
                    self.problem = ""
                elif response.WhichOneof("item") == "work":
                    entry_id = response.work.item_id
                    self._held.add(entry_id)
                    consumer.holders[entry_id] = self
                    consumer.entries.put_nowait(StreamEntry(entry_id, response.work, self))
                elif response.WhichOneof("item") == "not_held":
                    # Harmless: an entry is a hint, and the log knows what was done.
                    _logger.info("queue=%s entry=%s was settled too late; others have it", consumer.key, response.not_held.item_id)

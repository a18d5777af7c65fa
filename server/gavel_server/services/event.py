"""EventService: append producers' events, and read the log.

Reads come from the log itself, so they include the events that other servers committed. The index tells which events pass a filter
(`reads/search.py`). Where it does not reach, a listing scans SCAN_EVENTS_MAX events per page, and GetTrace reads the log from its first
event on. Only a few of these scans run at once (`fairness/work_slots`), so that reads can neither use up the memory of Redis and server
nor delay writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import (
    AcceptClockRequest,
    AcceptClockResponse,
    AcceptLossRequest,
    AcceptLossResponse,
    BatchPublishEventsRequest,
    BatchPublishEventsResponse,
    Checkpoint,
    GetEventRequest,
    GetEventResponse,
    GetTraceRequest,
    GetTraceResponse,
    ListEventsRequest,
    ListEventsResponse,
    PublishEventRequest,
    PublishEventResponse,
    PublishResult,
    SubscribeEventsRequest,
    SubscribeEventsResponse,
)
from gavel_rules.codec.fields import Field
from gavel_rules.codec.responses import with_chain_hash
from gavel_rules.commands import PublishEvent
from gavel_rules.events.ids import is_uuid
from gavel_rules.events.timestamps import milliseconds
from gavel_rules.limits import TRACE_EVENTS_MAX, TRACE_ID_LENGTH_MAX

from gavel_server.bus.registry import BUS_DEFAULT, BusRegistry
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.fairness.byte_budget import ByteBudget
from gavel_server.fairness.places import Places
from gavel_server.fairness.work_slots import scan_slots
from gavel_server.index.event_filter import EventFilter
from gavel_server.index.event_index import EventIndex
from gavel_server.intake.admission import admit
from gavel_server.intake.human_commands import clock_acceptance, loss_acceptance
from gavel_server.log import EventLog, Head
from gavel_server.process.threads import run_in_thread
from gavel_server.rpc.call_context import CallContext
from gavel_server.rpc.encoded_response import EncodedResponse
from gavel_server.rpc.errors import refuse
from gavel_server.rpc.identity.access_refusals import AccessRefusals
from gavel_server.services.batches.commands import AdmittedCommand, admit_all, check_batch, execute_all
from gavel_server.services.reads.event_numbers import number_of
from gavel_server.services.reads.following import Follower
from gavel_server.services.reads.history import check_history, last_read_violations
from gavel_server.services.reads.log_reader import (
    FOLLOWED,
    FOUND,
    LIST_ENVELOPES,
    TRACE_ENVELOPES,
    action_type_violations,
    category_violations,
    committed_envelope,
    envelope_of,
    lost_event,
    missing_event,
    outcome_violations,
    range_violations,
    reason_code_violations,
    record_of,
)
from gavel_server.services.reads.paging import PAGE_BYTES_MAX, Page, page_of
from gavel_server.services.reads.search import search
from gavel_server.services.reads.trace_reading import TraceReading, read_trace

# Proposals and executions have RPCs of their own; decisions are made by Gavel alone.
PUBLISHABLE: Final = frozenset({"fact", "observation", "tool_call", "tool_result", "agent_diagnostic"})
# The most that one page of a filtered listing scans.
SCAN_EVENTS_MAX: Final = 10_000
SCAN_BYTES_MAX: Final = 64 * 1024 * 1024
# Pages without a filter, and single events, that are read at once, and that wait.
READS_MAX: Final = 4
READS_WAITING_MAX: Final = 1_024
READ_RETRY_AFTER_MS: Final = 1_000
# Events for subscriptions that are read and not sent, in all and for one address. gRPC copies each event once more to send it.
FOLLOW_BYTES_MAX: Final = 32 * 1024 * 1024
CALLER_FOLLOW_BYTES_MAX: Final = FOLLOW_BYTES_MAX // 2
# A subscription to which no new event was sent waits before it looks at the next ones: two hundred streams that each looked at every batch,
# and said so, left little of the event loop to others.
FOLLOW_PAUSE_SECONDS: Final = 0.05
# Events that do not pass, after which a subscription to older events says how far it is.
CHECKPOINT_EVENTS: Final = 1_024
# A trace is cut before it outgrows the 4 MiB that gRPC clients accept by default; its pairs need room, too.
TRACE_BYTES_MAX: Final = 3 * 1024 * 1024

# The fields of the answer to a batch that hold a result, and its event.
_RESULTS: Final = Field(BatchPublishEventsResponse, "results")
_RESULT_ENVELOPE: Final = Field(PublishResult, "envelope")

# Events that the index lacks, up to which a filtered read needs no slot for scans of the log.
NEAR_EVENTS_MAX: Final = 1_024

_BATCH_METHOD: Final = "gavel.v1.EventService/BatchPublishEvents"


class EventServicer:
    """Serves EventService on the buses of this server."""

    def __init__(self, buses: BusRegistry, refusals: AccessRefusals | None = None, index: EventIndex | None = None) -> None:
        """`refusals` counts the events of batches that are refused; default: nobody records them. Without `index` reads scan the log."""
        self._index = index
        self._buses = buses
        self._refusals = AccessRefusals(buses) if refusals is None else refusals
        self._scans = scan_slots()
        self._reads = Places("reads wait", READS_MAX, waiting_max=READS_WAITING_MAX, retry_after_ms=READ_RETRY_AFTER_MS)
        self._follow_bytes = ByteBudget(FOLLOW_BYTES_MAX, CALLER_FOLLOW_BYTES_MAX)

    async def PublishEvent(self, request: PublishEventRequest, context: CallContext) -> PublishEventResponse:
        """Append one event."""
        self._buses.check_name(request.bus)
        admitted = _admit(request.envelope, request.bus or BUS_DEFAULT, context.traceparent)
        sequencer = await self._buses.open(request.bus, context.bus_incarnation)
        completed = await sequencer.execute(*admitted, caller=context.caller, principal=context.principal)
        return PublishEventResponse(envelope=committed_envelope(completed))

    async def BatchPublishEvents(
        self, request: BatchPublishEventsRequest, context: CallContext
    ) -> EncodedResponse[BatchPublishEventsResponse]:
        """Append events in order; each succeeds or fails independently."""
        check_batch(len(request.envelopes))
        self._buses.check_name(request.bus)
        bus, traceparent = request.bus or BUS_DEFAULT, context.traceparent
        admitted = await admit_all(request.envelopes, lambda envelope: _admit(envelope, bus, traceparent), context.caller)
        results = await execute_all(
            lambda: self._buses.open(request.bus, context.bus_incarnation), admitted, context.caller, context.principal
        )
        parts: list[bytes] = []
        for envelope, result in zip(request.envelopes, results, strict=True):
            if isinstance(result, ServiceError):
                self._refusals.note(_BATCH_METHOD, bus, context.principal, result, envelope)
                parts.append(_RESULTS.content(PublishResult(error=refuse(_BATCH_METHOD, result).status()).SerializeToString()))
            else:
                record = record_of(result)
                parts.append(_RESULTS.content(_RESULT_ENVELOPE.content(with_chain_hash(record.envelope, record.chain_hash))))
        return EncodedResponse(b"".join(parts))

    async def GetEvent(self, request: GetEventRequest, context: CallContext) -> EncodedResponse[GetEventResponse]:
        """Read one event by its sequence number or its id.

        The id of a live decision or an open review is known for as long as it lives, other ids within the idempotency window.
        """
        key = request.WhichOneof("key")
        if key is None:
            raise invalid([("key", "is required: event_id or sequence_number")])
        if key == "event_id" and not is_uuid(request.event_id):
            raise invalid([("event_id", "is not a UUID in canonical form")])
        if key == "sequence_number" and request.sequence_number < 1:
            raise invalid([("sequence_number", "is not 1 or more")])
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        number = request.sequence_number if key == "sequence_number" else await number_of(sequencer, request.event_id)
        async with self._reads.occupy(context.caller):
            record = (await sequencer.log.read_many([number])).get(number)
        if record is None and number > sequencer.head.sequence_number:
            message = f"bus {sequencer.bus} has no event {number}; its last is {sequencer.head.sequence_number}"
            raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
        name = f"event {number}" + (f" ({request.event_id})" if key == "event_id" else "")
        if record is None:
            raise await missing_event(sequencer.log, number, name)
        if key == "event_id" and envelope_of(record).event_id != request.event_id:
            raise lost_event(sequencer.bus, name)
        await sequencer.confirm(number)
        return EncodedResponse(FOUND.content(with_chain_hash(record.envelope, record.chain_hash)))

    async def ListEvents(self, request: ListEventsRequest, context: CallContext) -> EncodedResponse[ListEventsResponse]:
        """Read a page of the events that pass all filters."""
        first, last = request.from_sequence_number, request.to_sequence_number
        violations = category_violations(request.categories) + range_violations(from_sequence_number=first, to_sequence_number=last)
        violations += action_type_violations(request.action_types) + outcome_violations(request.outcomes)
        violations += reason_code_violations(request.reason_codes)
        if 0 < last < first:
            violations.append(("to_sequence_number", "is less than from_sequence_number"))
        from_ms, until_ms = milliseconds(request.recorded_from), milliseconds(request.recorded_until)
        violations += [(name, "is before 1970") for name, at_ms in (("recorded_from", from_ms), ("recorded_until", until_ms)) if at_ms < 0]
        if request.HasField("recorded_until") and until_ms <= from_ms:
            violations.append(("recorded_until", "is not after recorded_from, by default 1970-01-01T00:00:00Z"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        query = ("events", sequencer.bus, sorted(request.categories), request.subject, request.trace_id, first, last, *_further(request))
        page = page_of(request.page_size, request.page_token, query, (int, int))
        head = await _confirmed_head(sequencer)
        event_filter = EventFilter(
            frozenset(request.categories),
            subject=request.subject,
            trace_id=request.trace_id,
            action_types=frozenset(request.action_types),
            outcomes=frozenset(request.outcomes),
            reason_codes=frozenset(request.reason_codes),
            recorded_from_ms=from_ms,
            recorded_until_ms=until_ms,
        )
        # The first page fixes the end of the listing, so that the listing ends although others write.
        position = page.after or (first, last or head)
        begin, end = max(int(position[0]), 1), min(int(position[1]), head)
        place = self._reads.occupy(context.caller) if event_filter.selects_all else self._slot(sequencer.bus, begin, end, context)
        async with place:
            return await _list(sequencer.log, self._index, event_filter, page, begin, end, context.caller)

    def _slot(self, bus: str, first: int, last: int, context: CallContext) -> AbstractAsyncContextManager[None]:
        """Return the slot for a scan of the log, unless the index leaves little to scan."""
        indexed = 0 if self._index is None else self._index.head(bus)
        is_near = indexed > 0 and last - max(indexed, first - 1) <= NEAR_EVENTS_MAX
        return nullcontext() if is_near else self._scans.occupy(context.address)

    async def SubscribeEvents(
        self, request: SubscribeEventsRequest, context: CallContext
    ) -> AsyncGenerator[EncodedResponse[SubscribeEventsResponse], None]:
        """Stream the events that pass all filters, history first, then each as it is committed.

        After events that do not pass, a checkpoint names the last event that was scanned.
        """
        violations = category_violations(request.categories) + range_violations(from_sequence_number=request.from_sequence_number)
        violations += action_type_violations(request.action_types) + outcome_violations(request.outcomes)
        violations += last_read_violations(request)
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        if request.HasField("last_read"):
            last_read = Head(request.last_read.sequence_number, request.last_read.chain_hash)
            # Announced, the wait would send the headers that say that the caller is subscribed.
            await check_history(sequencer, last_read, self._reads.occupy(context.caller, announces=False))
        await context.send_headers()  # the caller learns that it is subscribed before there is an event
        event_filter = EventFilter(
            frozenset(request.categories),
            subject_prefix=request.subject_prefix,
            trace_id=request.trace_id,
            action_types=frozenset(request.action_types),
            outcomes=frozenset(request.outcomes),
        )
        number = max(request.from_sequence_number, 1)
        follower = Follower(sequencer, event_filter, self._follow_bytes, context)
        with sequencer.tail.followed():
            while True:
                head = await sequencer.wait_beyond(number - 1)
                await sequencer.confirm(head)
                told = number - 1  # the last event that the caller knows of
                has_sent = False
                async with aclosing(follower.scan(number, head)) as scans:
                    async for events, last in scans:
                        for event in events:
                            told, has_sent = event.envelope.sequence_number, True
                            yield EncodedResponse(FOLLOWED.content(event.content))
                            del event
                        del events  # a stream that waits keeps nothing that it has sent
                        scanned = last.sequence_number
                        if told < scanned and (scanned == head or scanned - told >= CHECKPOINT_EVENTS):
                            told = scanned
                            checkpoint = Checkpoint(sequence_number=told, chain_hash=last.chain_hash)
                            yield EncodedResponse(SubscribeEventsResponse(checkpoint=checkpoint).SerializeToString())
                        del last
                number = head + 1
                if not has_sent:
                    await asyncio.sleep(FOLLOW_PAUSE_SECONDS)

    async def GetTrace(self, request: GetTraceRequest, context: CallContext) -> EncodedResponse[GetTraceResponse]:
        """Read a whole trace, with its tool calls and results paired, and what has drifted.

        Pairs and drift come from the events in the answer alone.
        """
        trace_id = request.trace_id
        if not (0 < len(trace_id) <= TRACE_ID_LENGTH_MAX and trace_id.isascii() and trace_id.isprintable()):
            raise invalid([("trace_id", f"is not 1 to {TRACE_ID_LENGTH_MAX} printable ASCII characters")])
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        last = await _confirmed_head(sequencer)
        async with self._slot(sequencer.bus, 1, last, context):
            return await _trace(sequencer, self._index, trace_id, last, context.caller)

    async def AcceptClock(self, request: AcceptClockRequest, context: CallContext) -> AcceptClockResponse:
        """Allow writes to a bus whose last event is ahead of the clocks."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        command = clock_acceptance(request, sequencer.replica.clock.now_ms(), context.principal)
        completed = await sequencer.execute(command, size_bytes=request.ByteSize(), caller=context.caller, principal=context.principal)
        return AcceptClockResponse(envelope=committed_envelope(completed))

    async def AcceptLoss(self, request: AcceptLossRequest, context: CallContext) -> AcceptLossResponse:
        """Allow writes to a bus whose log has lost acknowledged events. They continue from the end of the log."""
        sequencer = await self._buses.existing(request.bus, context.bus_incarnation)
        lost_head = sequencer.replica.lost_head
        if lost_head is None:
            message = f"the log of bus {sequencer.bus} has every event that this server has acknowledged; nothing is lost"
            raise ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, message)
        loss_acceptance(request, lost_head, sequencer.head, context.principal)  # the request is refused before anything is closed
        if sequencer.replica.has_diverged:
            # The state has events that the log has not.
            await sequencer.replica.acknowledged.save()
            sequencer = await self._buses.reopen(request.bus)
            if self._index is not None:
                self._index.forget(sequencer.bus)
        lost_head = sequencer.replica.lost_head
        if lost_head is None:
            raise ServiceError(error_pb2.ERROR_REASON_WRONG_STATE, f"the log of bus {sequencer.bus} has come back; nothing is lost")
        command = loss_acceptance(request, lost_head, sequencer.head, context.principal)
        completed = await sequencer.execute(command, size_bytes=request.ByteSize(), caller=context.caller, principal=context.principal)
        return AcceptLossResponse(envelope=committed_envelope(completed))


def _further(request: ListEventsRequest) -> tuple[object, ...]:
    """Return the filters of a query that earlier builds did not have; none if none is set, so that their page tokens stay valid."""
    further = (
        sorted(request.action_types),
        sorted(request.outcomes),
        sorted(request.reason_codes),
        milliseconds(request.recorded_from),
        milliseconds(request.recorded_until),
    )
    return further if any(further) else ()


async def _list(
    log: EventLog, index: EventIndex | None, event_filter: EventFilter, page: Page, first: int, last: int, caller: str
) -> EncodedResponse[ListEventsResponse]:
    """Return the ListEventsResponse with the events from `first` to `last` that pass, or with a page of them."""
    parts: list[bytes] = []
    size_bytes = events_read = bytes_read = 0
    async with aclosing(search(log, index, event_filter, first, last, caller)) as history:
        async for result in history:
            for event in result.events:
                size_bytes += len(event.content)
                if parts and (len(parts) == page.size or size_bytes > PAGE_BYTES_MAX):
                    return _page(parts, page.token((event.envelope.sequence_number, last)))
                parts.append(LIST_ENVELOPES.content(event.content))
            events_read += result.events_read
            bytes_read += result.bytes_read
            if result.reached < last and (events_read >= SCAN_EVENTS_MAX or bytes_read >= SCAN_BYTES_MAX):
                return _page(parts, page.token((result.reached + 1, last)))
    return _page(parts, "")


def _page(parts: list[bytes], next_page_token: str) -> EncodedResponse[ListEventsResponse]:
    return EncodedResponse(b"".join([*parts, ListEventsResponse(next_page_token=next_page_token).SerializeToString()]))


async def _trace(
    sequencer: Sequencer, index: EventIndex | None, trace_id: str, last: int, caller: str
) -> EncodedResponse[GetTraceResponse]:
    """Return the GetTraceResponse of a trace up to event `last`, cut at its limits."""
    parts: list[bytes] = []
    events: list[Envelope] = []
    size_bytes = 0
    truncated = False
    async with aclosing(search(sequencer.log, index, EventFilter(trace_id=trace_id), 1, last, caller)) as history:
        async for result in history:
            for event in result.events:
                size_bytes += len(event.content)
                truncated = len(parts) == TRACE_EVENTS_MAX or size_bytes > TRACE_BYTES_MAX
                if truncated:
                    break
                parts.append(TRACE_ENVELOPES.content(event.content))
                events.append(event.envelope)
            if truncated:
                break
    # In threads: reading ten thousand events takes tens of milliseconds.
    reading = await run_in_thread(read_trace, events)
    answer = GetTraceResponse(truncated=truncated, version_binding=reading.version_binding if reading.versions.bound else None)
    answer.drifts.extend(reading.drifts(await sequencer.confirmed_state()))
    rest = await run_in_thread(lambda: _with_pairs(answer, reading).SerializeToString())
    return EncodedResponse(b"".join([*parts, rest]))


def _with_pairs(answer: GetTraceResponse, reading: TraceReading) -> GetTraceResponse:
    answer.pairs.extend(reading.pairs)
    return answer


def _admit(envelope: Envelope, bus: str, traceparent: str) -> AdmittedCommand:
    idempotency_key = admit(envelope, bus, PUBLISHABLE, traceparent=traceparent)
    return AdmittedCommand(PublishEvent(envelope), idempotency_key, envelope.ByteSize())


async def _confirmed_head(sequencer: Sequencer) -> int:
    """Return the sequence number of the log's newest event, once it is confirmed. Raises ServiceError LOG_UNAVAILABLE, LogError."""
    head = (await sequencer.log.head()).sequence_number
    await sequencer.confirm(head)
    return head

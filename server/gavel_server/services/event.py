"""EventService: appending what producers say, and reading the log.

Reads come from the log itself, so they see what any server has committed. The log has no index by subject or trace: a listing
with such a filter looks at SCAN_EVENTS_MAX events per page, and GetTrace reads the log from its first event on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import grpc
from gavel.v1 import error_pb2, event_service_pb2_grpc
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import (
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
from gavel_rules.commands import PublishEvent
from gavel_rules.events import is_uuid
from gavel_rules.limits import TRACE_EVENTS_MAX, TRACE_ID_LENGTH_MAX

from gavel_server.admission import admit
from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError, invalid
from gavel_server.services.batches import Admitted, check_batch, execute_all
from gavel_server.services.boundary import refused
from gavel_server.services.paging import PAGE_BYTES_MAX, page_of
from gavel_server.services.pairing import tool_pairs
from gavel_server.services.reading import Filter, category_violations, chunks, envelope_of, range_violations, recorded

if TYPE_CHECKING:
    from gavel_server.buses import Buses

# Proposals and executions have RPCs of their own; decisions are nobody's to publish.
PUBLISHABLE: Final = frozenset({"fact", "observation", "tool_call", "tool_result", "agent_diagnostic"})
# Events that one page of a filtered listing looks at, at most.
SCAN_EVENTS_MAX: Final = 10_000
# A trace is cut rather than outgrow the 4 MiB that gRPC clients take unless told otherwise; its pairs need room too.
TRACE_BYTES_MAX: Final = 3 * 1024 * 1024

_BATCH_METHOD: Final = "gavel.v1.EventService/BatchPublishEvents"
_Context = grpc.aio.ServicerContext[Any, Any]


class EventServicer(event_service_pb2_grpc.EventServiceServicer):
    """Serves EventService on the buses of this server."""

    def __init__(self, buses: Buses) -> None:
        self._buses = buses

    async def PublishEvent(self, request: PublishEventRequest, context: _Context) -> PublishEventResponse:
        """Append one event."""
        sequencer = await self._buses.get(request.bus)
        command, check_id = _admitted(request.envelope, sequencer.bus)
        completed = await sequencer.execute(command, check_id, request.envelope.ByteSize())
        return PublishEventResponse(envelope=recorded(completed))

    async def BatchPublishEvents(self, request: BatchPublishEventsRequest, context: _Context) -> BatchPublishEventsResponse:
        """Append events, each for itself, in order."""
        check_batch(len(request.envelopes), request.ByteSize())
        sequencer = await self._buses.get(request.bus)
        results = await execute_all(sequencer, request.envelopes, lambda envelope: _admitted(envelope, sequencer.bus))
        return BatchPublishEventsResponse(
            results=[
                PublishResult(error=refused(_BATCH_METHOD, result).status())
                if isinstance(result, ServiceError)
                else PublishResult(envelope=recorded(result))
                for result in results
            ]
        )

    async def GetEvent(self, request: GetEventRequest, context: _Context) -> GetEventResponse:
        """Read one event by its place or its id; the id of a live decision or open review is known for as long as that lives."""
        key = request.WhichOneof("key")
        if key is None:
            raise invalid([("key", "is required: event_id or sequence_number")])
        if key == "event_id" and not is_uuid(request.event_id):
            raise invalid([("event_id", "is not a UUID in canonical form")])
        if key == "sequence_number" and request.sequence_number < 1:
            raise invalid([("sequence_number", "is not 1 or more")])
        sequencer = await self._buses.get(request.bus)
        number = request.sequence_number if key == "sequence_number" else await _number_of(sequencer, request.event_id)
        record = (await sequencer.log.read_many([number])).get(number)
        if record is None:
            raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, f"bus {sequencer.bus} holds no event {number}")
        return GetEventResponse(envelope=envelope_of(record))

    async def ListEvents(self, request: ListEventsRequest, context: _Context) -> ListEventsResponse:
        """Read a page of the events that pass all filters."""
        first, last = request.from_sequence_number, request.to_sequence_number
        violations = category_violations(request.categories) + range_violations(from_sequence_number=first, to_sequence_number=last)
        if 0 < last < first:
            violations.append(("to_sequence_number", "lies before from_sequence_number"))
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.get(request.bus)
        query = ("events", sequencer.bus, sorted(request.categories), request.subject, request.trace_id, first, last)
        page = page_of(request.page_size, request.page_token, query, (int, int))
        head = (await sequencer.log.head()).sequence_number
        # The first page fixes where the listing ends, so that it does end while others write.
        position = page.after or (first, last or head)
        first, last = max(int(position[0]), 1), min(int(position[1]), head)
        wanted = Filter(frozenset(request.categories), subject=request.subject, trace_id=request.trace_id)
        response = ListEventsResponse()
        size_bytes = 0
        async with aclosing(chunks(sequencer.log, first, last)) as history:
            async for records in history:
                for envelope in wanted.passing(records):
                    size_bytes += envelope.ByteSize()
                    if response.envelopes and (len(response.envelopes) == page.size or size_bytes > PAGE_BYTES_MAX):
                        response.next_page_token = page.token((envelope.sequence_number, last))
                        return response
                    response.envelopes.append(envelope)
                number = records[-1].sequence_number
                if first + SCAN_EVENTS_MAX <= number + 1 <= last:
                    response.next_page_token = page.token((number + 1, last))
                    return response
        return response

    async def SubscribeEvents(self, request: SubscribeEventsRequest, context: _Context) -> AsyncGenerator[SubscribeEventsResponse, None]:
        """Stream the events that pass all filters, history first, then each as it is committed.

        After a stretch that ends in events that do not pass, a checkpoint says how far it has come.
        """
        violations = category_violations(request.categories) + range_violations(from_sequence_number=request.from_sequence_number)
        if violations:
            raise invalid(violations)
        sequencer = await self._buses.get(request.bus)
        await context.send_initial_metadata(())  # the caller knows that it is subscribed before there is an event
        wanted = Filter(frozenset(request.categories), subject_prefix=request.subject_prefix, trace_id=request.trace_id)
        number = max(request.from_sequence_number, 1)
        while True:
            head = await sequencer.beyond(number - 1)
            async with aclosing(chunks(sequencer.log, number, head)) as history:
                async for records in history:
                    seen = 0
                    for envelope in wanted.passing(records):
                        seen = envelope.sequence_number
                        yield SubscribeEventsResponse(envelope=envelope)
                    if seen < records[-1].sequence_number:
                        yield SubscribeEventsResponse(checkpoint=Checkpoint(sequence_number=records[-1].sequence_number))
            number = head + 1

    async def GetTrace(self, request: GetTraceRequest, context: _Context) -> GetTraceResponse:
        """Read a trace whole, with its tool calls and results paired. Pairs speak of the events that are answered."""
        trace_id = request.trace_id
        if not (0 < len(trace_id) <= TRACE_ID_LENGTH_MAX and trace_id.isascii() and trace_id.isprintable()):
            raise invalid([("trace_id", f"is not 1 to {TRACE_ID_LENGTH_MAX} printable ASCII characters")])
        sequencer = await self._buses.get(request.bus)
        wanted = Filter(trace_id=trace_id)
        last = (await sequencer.log.head()).sequence_number
        envelopes: list[Envelope] = []
        size_bytes = 0
        async with aclosing(chunks(sequencer.log, 1, last)) as history:
            async for records in history:
                for envelope in wanted.passing(records):
                    size_bytes += envelope.ByteSize()
                    if len(envelopes) == TRACE_EVENTS_MAX or size_bytes > TRACE_BYTES_MAX:
                        return GetTraceResponse(envelopes=envelopes, pairs=tool_pairs(envelopes), truncated=True)
                    envelopes.append(envelope)
        return GetTraceResponse(envelopes=envelopes, pairs=tool_pairs(envelopes))


def _admitted(envelope: Envelope, bus: str) -> Admitted:
    chosen = admit(envelope, bus, PUBLISHABLE)
    return Admitted(PublishEvent(envelope), envelope.event_id if chosen else "")


async def _number_of(sequencer: Sequencer, event_id: str) -> int:
    """Return where an event stands. Raises ServiceError EVENT_NOT_FOUND."""
    state = await sequencer.settled()
    live = state.decisions.get(event_id) or state.reviews.get(event_id)
    if live is not None:
        return live.sequence_number
    known = await sequencer.lookup.find(event_id, sequencer.now_ms())
    if known is None:
        message = f"bus {sequencer.bus} knows no event {event_id}; ids are remembered for {state.idempotency_window_ms} ms"
        raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
    return known.sequence_number

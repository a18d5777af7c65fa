"""The calls of EventService: publications, reads and subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gavel.v1 import event_service_pb2 as events
from gavel.v1.common_pb2 import EventCategory
from gavel.v1.decision_pb2 import Outcome
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2_grpc import EventServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from gavel_client.rpc.calls.call import StreamCall, UnaryCall, stream_call, unary_call, with_event_id
from gavel_client.rpc.deadlines import READ_TIMEOUT_MS, WRITE_TIMEOUT_MS


def publish_event(envelope: Envelope, *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS) -> UnaryCall[events.PublishEventResponse]:
    """Append a fact, an observation, a tool event or a diagnostic; return it as recorded in the log."""
    request = events.PublishEventRequest(bus=bus, envelope=with_event_id(envelope))
    return unary_call(EventServiceStub, lambda stub: stub.PublishEvent, request, timeout_ms)


def batch_publish_events(
    envelopes: Iterable[Envelope], *, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[events.BatchPublishEventsResponse]:
    """Append 1..500 events; return an envelope or a google.rpc.Status (`GavelError.from_status`) for each, in order."""
    request = events.BatchPublishEventsRequest(bus=bus, envelopes=map(with_event_id, envelopes))
    return unary_call(EventServiceStub, lambda stub: stub.BatchPublishEvents, request, timeout_ms)


def accept_clock(
    *, accepted_by: str, reason: str, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[events.AcceptClockResponse]:
    """Allow writes to a bus whose last event is ahead of the clocks; return the recorded FACT."""
    request = events.AcceptClockRequest(bus=bus, accepted_by=accepted_by, reason=reason)
    return unary_call(EventServiceStub, lambda stub: stub.AcceptClock, request, timeout_ms)


def accept_loss(
    *, head_sequence_number: int, accepted_by: str, reason: str, bus: str = "", timeout_ms: int = WRITE_TIMEOUT_MS
) -> UnaryCall[events.AcceptLossResponse]:
    """Allow writes to a bus whose log has lost acknowledged events and ends at `head_sequence_number`; return the recorded FACT."""
    request = events.AcceptLossRequest(bus=bus, accepted_by=accepted_by, reason=reason, head_sequence_number=head_sequence_number)
    return unary_call(EventServiceStub, lambda stub: stub.AcceptLoss, request, timeout_ms)


def get_event(
    *, event_id: str = "", sequence_number: int = 0, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS
) -> UnaryCall[events.GetEventResponse]:
    """Read one event, by its UUID (while the bus remembers it) or by its sequence number, from 1."""
    if bool(event_id) == bool(sequence_number):
        raise ValueError("pass either event_id or sequence_number, not both or neither")
    if event_id:
        request = events.GetEventRequest(bus=bus, event_id=event_id)
    else:
        request = events.GetEventRequest(bus=bus, sequence_number=sequence_number)
    return unary_call(EventServiceStub, lambda stub: stub.GetEvent, request, timeout_ms)


def list_events(
    *,
    categories: Sequence[EventCategory.ValueType] = (),
    subject: str = "",
    trace_id: str = "",
    from_sequence_number: int = 0,
    to_sequence_number: int = 0,
    action_types: Sequence[str] = (),
    outcomes: Sequence[Outcome.ValueType] = (),
    reason_codes: Sequence[str] = (),
    recorded_from: Timestamp | None = None,
    recorded_until: Timestamp | None = None,
    page_size: int = 0,
    page_token: str = "",
    bus: str = "",
    timeout_ms: int = READ_TIMEOUT_MS,
) -> UnaryCall[events.ListEventsResponse]:
    """Read a page of the events that pass all filters, oldest first; an empty filter passes all (AIP-158).

    `recorded_from` is the first recording time that passes, `recorded_until` the first one that no longer does.
    """
    request = events.ListEventsRequest(
        bus=bus,
        categories=categories,
        subject=subject,
        trace_id=trace_id,
        from_sequence_number=from_sequence_number,
        to_sequence_number=to_sequence_number,
        action_types=action_types,
        outcomes=outcomes,
        reason_codes=reason_codes,
        recorded_from=recorded_from,
        recorded_until=recorded_until,
        page_size=page_size,
        page_token=page_token,
    )
    return unary_call(EventServiceStub, lambda stub: stub.ListEvents, request, timeout_ms)


def subscribe_events(
    *,
    from_sequence_number: int = 0,
    categories: Sequence[EventCategory.ValueType] = (),
    subject_prefix: str = "",
    trace_id: str = "",
    action_types: Sequence[str] = (),
    outcomes: Sequence[Outcome.ValueType] = (),
    last_read: events.Checkpoint | None = None,
    bus: str = "",
    timeout_ms: int | None = None,
) -> StreamCall[events.SubscribeEventsResponse]:
    """Stream the past events and then new ones, without gap or duplicate, and checkpoints while no event passes the filters.

    After an error, subscribe again from the sequence number after the last envelope or checkpoint. Give its number and chain hash as
    `last_read`: the server then refuses (HISTORY_REPLACED) if the log has lost it.
    """
    request = events.SubscribeEventsRequest(
        bus=bus,
        from_sequence_number=from_sequence_number,
        categories=categories,
        subject_prefix=subject_prefix,
        trace_id=trace_id,
        action_types=action_types,
        outcomes=outcomes,
        last_read=last_read,
    )
    return stream_call(EventServiceStub, lambda stub: stub.SubscribeEvents, request, timeout_ms)


def get_trace(trace_id: str, *, bus: str = "", timeout_ms: int = READ_TIMEOUT_MS) -> UnaryCall[events.GetTraceResponse]:
    """Read the events of a trace, with tool calls paired to their results (constitution 001)."""
    request = events.GetTraceRequest(bus=bus, trace_id=trace_id)
    return unary_call(EventServiceStub, lambda stub: stub.GetTrace, request, timeout_ms)

"""The sequence numbers of events by their ids."""

from __future__ import annotations

from gavel.v1 import error_pb2

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log.protocol import DAY_MS


async def number_of(sequencer: Sequencer, event_id: str) -> int:
    """Return the sequence number of an event. Raises ServiceError EVENT_NOT_FOUND."""
    state = await sequencer.settled_state()
    live = state.decisions.get(event_id) or state.reviews.get(event_id)
    if live is not None:
        return live.sequence_number
    location = await sequencer.recent_events.find_location(event_id, sequencer.now_ms())
    if location is None:
        if sequencer.replica.has_diverged and sequencer.replica.write_block is not None:
            # The event may be one of those that the log has lost.
            raise sequencer.replica.write_block.copy()
        message = f"bus {sequencer.bus} has no event {event_id}; it remembers ids for {state.idempotency_window_ms // DAY_MS} days"
        raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)
    return location.sequence_number

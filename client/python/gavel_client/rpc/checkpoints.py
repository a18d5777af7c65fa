"""How far a reader of a log has come, by the number and the chain hash of the last event that it has read."""

from __future__ import annotations

from gavel.v1.event_service_pb2 import Checkpoint, SubscribeEventsResponse


def checkpoint_after(response: SubscribeEventsResponse) -> Checkpoint:
    """Return the `last_read` with which `subscribe_events` continues after a response.

    Its sequence number is the last one that the response covers; the next subscription begins after it.
    """
    if response.HasField("checkpoint"):
        return response.checkpoint
    return Checkpoint(sequence_number=response.envelope.sequence_number, chain_hash=response.envelope.chain_hash)

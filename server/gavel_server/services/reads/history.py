"""Whether the log still has the event that a caller has read last."""

from __future__ import annotations

from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.event_service_pb2 import SubscribeEventsRequest

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import Head
from gavel_server.log.protocol import describe, has_event

_CHAIN_HASH_BYTES: Final = 32


def last_read_violations(request: SubscribeEventsRequest) -> list[tuple[str, str]]:
    """Return the violations of the field `last_read`."""
    violations: list[tuple[str, str]] = []
    if request.HasField("last_read"):
        if request.last_read.sequence_number < 1:
            violations.append(("last_read.sequence_number", "is not 1 or more"))
        if len(request.last_read.chain_hash) != _CHAIN_HASH_BYTES:
            violations.append(("last_read.chain_hash", f"is not {_CHAIN_HASH_BYTES} bytes"))
    return violations


async def check_history(sequencer: Sequencer, last_read: Head) -> None:
    """Raise ServiceError HISTORY_REPLACED if the log does not have the last event that a caller has read.

    As long as the bus takes no writes because it has lost events, it raises that refusal, LOG_REGRESSED: the log may be restored.
    Raises LogError if the log cannot be read.
    """
    if await has_event(sequencer.log, last_read):
        return
    head = await sequencer.log.head()
    if await has_event(sequencer.log, last_read):
        return  # what `head` waited for has brought it
    if sequencer.replica.lost_head is not None and sequencer.replica.write_block is not None:
        raise sequencer.replica.write_block.copy()
    raise ServiceError(
        error_pb2.ERROR_REASON_HISTORY_REPLACED,
        f"the log of bus {sequencer.bus} has lost event {describe(last_read)}, the last one that the caller has read; it now ends with "
        f"event {describe(head)}. Look for the event DataLossAccepted, and read on from there",
    )

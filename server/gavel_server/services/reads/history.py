"""Whether the log still has the event that a caller has read last."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Final

from gavel.v1 import error_pb2
from gavel.v1.event_service_pb2 import SubscribeEventsRequest

from gavel_server.bus.sequencer import Sequencer
from gavel_server.errors import ServiceError
from gavel_server.log import EventLog, Head, chain
from gavel_server.log.protocol import SEQUENCE_NUMBER_MAX, describe, has_event

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


async def check_history(sequencer: Sequencer, last_read: Head, place: AbstractAsyncContextManager[None]) -> None:
    """Raise ServiceError HISTORY_REPLACED if the log has lost the last event that a caller has read.

    LOG_REGRESSED as long as the loss is not accepted: the log may be restored. EVENT_NOT_FOUND if the event was trimmed and this server
    does not have the archive. Raises LogError if the log cannot be read. Occupies `place` while it reads the log, and not while the server
    reads on.
    """
    log, number = sequencer.log, last_read.sequence_number
    async with place:
        head = await log.head()
        # An archive may have more than the log, which has lost it then.
        if number <= head.sequence_number and (await has_event(log, last_read) or await _is_trimmed(log, last_read)):
            return
    await sequencer.read_on()  # the server may not have noticed the loss yet
    if sequencer.replica.lost_head is not None and sequencer.replica.write_block is not None:
        raise sequencer.replica.write_block.copy()
    lost = f"the log of bus {sequencer.bus} has lost event {describe(last_read)}, the last one that the caller has read"
    if log.lost_head is not None:
        raise ServiceError(error_pb2.ERROR_REASON_LOG_REGRESSED, f"{lost}; restore the log, or accept the loss")
    message = f"{lost}; it now ends with event {describe(head)}. Look for the event DataLossAccepted, and read on from there"
    raise ServiceError(error_pb2.ERROR_REASON_HISTORY_REPLACED, message)


async def _is_trimmed(log: EventLog, last_read: Head) -> bool:
    """Return whether the log begins with the event that follows `last_read`. Raises ServiceError EVENT_NOT_FOUND if it begins later."""
    following = await log.read(last_read.sequence_number, SEQUENCE_NUMBER_MAX, 1)
    if not following or following[0].sequence_number == last_read.sequence_number:
        return False
    first = following[0]
    if first.sequence_number == last_read.sequence_number + 1:
        return chain(last_read.chain_hash, first.envelope) == first.chain_hash
    message = (
        f"the log of bus {log.bus} begins with event {first.sequence_number}, and the last one that the caller has read is "
        f"{last_read.sequence_number}; start the server with the archive of the log (--archive)"
    )
    raise ServiceError(error_pb2.ERROR_REASON_EVENT_NOT_FOUND, message)

"""The last acknowledged event of a bus: up to it the log has confirmed all events, so callers may have been told of them.

It is in memory and, with a checkpoint, in a file. A log that lacks it has lost acknowledged events. Later events, which the log has taken
and not confirmed, may be lost: nobody was told that they are recorded.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import structlog
from gavel.v1.envelope_pb2 import Envelope

from gavel_server.bus.checkpoint import Checkpoint
from gavel_server.log import EventLog, Head
from gavel_server.log.protocol import has_event

# Heads that wait for a confirmation. If the log confirms nothing for longer, the earliest are forgotten.
UNCONFIRMED_HEADS_MAX: Final = 4096

_LOG: Final = structlog.get_logger(__name__)


class AcknowledgedHead:
    """The last acknowledged event of one bus, as far as this process knows."""

    def __init__(self, log: EventLog, checkpoint: Checkpoint | None) -> None:
        self.checkpoint = checkpoint
        self._log: Final = log
        self._head: Head | None = None
        self._incarnation = ""
        self._unconfirmed: Final[deque[Head]] = deque(maxlen=UNCONFIRMED_HEADS_MAX)
        self._suspended_checkpoint: Checkpoint | None = None

    @property
    def head(self) -> Head | None:
        """The event, which stays the same after the log has lost it; None: this process has acknowledged none."""
        return self._head

    @property
    def last(self) -> Head | None:
        """The event as `head`, or that of the checkpoint, which an earlier process of this server has written."""
        self.settle()
        return (self.checkpoint and self.checkpoint.head_of(self._log.bus)) or self._head

    def add(self, head: Head) -> None:
        """Add an event of the log. It is acknowledged once the log has confirmed it."""
        if not self._unconfirmed or self._unconfirmed[-1] != head:
            self._unconfirmed.append(head)

    def note(self, head: Head, incarnation: str) -> None:
        """Add the head of the state, and settle. Callers are answered afterwards. `incarnation` is the event_id of the first event."""
        self._incarnation = incarnation
        if head.sequence_number:
            self.add(head)
        self.settle()

    def settle(self) -> None:
        """Move on to the last event that the log has confirmed, and write it into the checkpoint."""
        unconfirmed = self._unconfirmed
        while unconfirmed and self._log.is_confirmed(unconfirmed[0].sequence_number):
            self._head = unconfirmed.popleft()
        if self.checkpoint is not None and self._head is not None:
            self.checkpoint.note(self._log.bus, self._head, self._incarnation)

    async def is_in_log(self, incarnation: str) -> bool:
        """Return whether the log, which lacks the last event of the state, has all acknowledged ones. Raises LogError.

        `incarnation` is the event_id of its first event.
        """
        last = self.last
        if self._log.is_confirmed(1 if last is None else last.sequence_number + 1):
            return False  # later events were acknowledged, whose heads have been forgotten
        if last is not None:
            return await has_event(self._log, last)
        first = (await self._log.read_many([1])).get(1)
        return first is not None and Envelope.FromString(first.envelope).event_id == incarnation

    def forget_unconfirmed(self) -> None:
        """Forget the events that are not confirmed: the log has lost them."""
        self._unconfirmed.clear()

    def suspend(self) -> None:
        """Write the checkpoint no more: it names an event that the log has lost."""
        self._suspended_checkpoint, self.checkpoint = self.checkpoint, None

    def resume(self) -> None:
        """Let the checkpoint follow the log again."""
        self.checkpoint = self._suspended_checkpoint or self.checkpoint

    @property
    def suspended_incarnation(self) -> str:
        """The incarnation of the bus that the suspended checkpoint is about; "" if there is none."""
        return self._suspended_checkpoint.incarnation_of(self._log.bus) if self._suspended_checkpoint is not None else ""

    async def save(self) -> None:
        """Wait until the checkpoint is on the disk. A full disk is logged and does not keep the bus from stopping."""
        if self.checkpoint is not None and self._head is not None:
            try:
                await self.checkpoint.save({self._log.bus: self._head})
            except OSError as error:
                _LOG.error("checkpoint.not_written", bus=self._log.bus, problem=error.strerror)


def regression(bus: str, head: Head, acknowledged: Head, source: str = "") -> str:
    """Return the message about a log that ends at `head` and lacks an acknowledged event. `source` tells who knows of the event."""
    lost = f"bus {bus} has lost acknowledged events: event {acknowledged.sequence_number}{source} is missing from the log or replaced"
    if head.sequence_number == 0:
        return (
            f"{lost} (the log is empty). Restore the log; or, to begin another bus of this name, stop the servers and remove the line of "
            "the bus from their checkpoints"
        )
    return (
        f"{lost} (head: {head.sequence_number}). Writes are refused until the log is restored, or the loss is accepted with "
        f"gavel accept-loss --at {head.sequence_number}"
    )

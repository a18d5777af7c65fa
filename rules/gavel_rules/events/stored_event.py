"""An event held in the state, as a message or as the log's serialized bytes."""

from __future__ import annotations

from gavel.v1.envelope_pb2 import Envelope


class StoredEvent:
    """An event in the state. Packed, it takes a quarter of the memory of a message.

    Most approvals wait untouched until an executor starts them, and are packed. Reading `message` unpacks the event for good.
    """

    __slots__ = ("_content", "_message")

    def __init__(self, message: Envelope | None, content: bytes = b"") -> None:
        """`content` is the event's bytes in the log; without `message` the event is packed."""
        self._message: Envelope | None = message
        self._content = content

    def pack(self, content: bytes) -> None:
        """Replace the message by its serialized bytes."""
        self._content = content
        self._message = None

    @property
    def message(self) -> Envelope:
        """The event as a message, which must not be changed. Unpacks the event."""
        message = self._message
        if message is None:
            message = self._message = self.read()
        return message

    @property
    def is_packed(self) -> bool:
        """Whether only the bytes are stored."""
        return self._message is None

    @property
    def content(self) -> bytes:
        """The event's bytes in the log."""
        return self._content or self.message.SerializeToString(deterministic=True)

    def read(self) -> Envelope:
        """Return the event as a message. A packed event stays packed."""
        return self._message if self._message is not None else Envelope.FromString(self._content)


def pack_event(message: Envelope) -> StoredEvent:
    """Return a packed event."""
    stored = StoredEvent(message)
    stored.pack(stored.content)
    return stored

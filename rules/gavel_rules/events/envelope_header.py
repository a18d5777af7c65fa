"""The header of an envelope: the fields that say which event this is and who produced it."""

from __future__ import annotations

from typing import Final

from gavel.v1.common_pb2 import ProducerType
from gavel.v1.envelope_pb2 import Envelope


class EnvelopeHeader:
    """The header fields of an envelope, read once (docs/performance.md#protobuf-fields)."""

    def __init__(self, envelope: Envelope) -> None:
        producer = envelope.producer
        self.event_id: Final = envelope.event_id
        self.event_name: Final = envelope.event_name
        self.trace_id: Final = envelope.trace_id
        self.causation_id: Final = envelope.causation_id
        self.subject: Final = envelope.subject
        self.producer_type: Final[ProducerType.ValueType] = producer.type
        self.producer_id: Final = producer.id
        self.producer_version: Final = producer.version

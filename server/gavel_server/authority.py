"""Who may publish what: the producer-category matrix and the fields that are Gavel's own (seeds 002 §4.9).

Without authentication the server listens on loopback or a unix socket only and takes the producer from the request; what
a producer of that type may publish is checked all the same, on every append.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import common_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact, ObservedFrom
from gavel_rules.derivation import is_derived
from gavel_rules.events import (
    CATEGORIES_OF_PRODUCER,
    CATEGORY_OF_PAYLOAD,
    DECISION,
    DECISION_NAME,
    FACT_DERIVATION_REACTOR,
    GAVEL,
    SYSTEM_FACT_KEY,
)
from gavel_rules.proposed import Header

from gavel_server.errors import ServiceError

# Notices that only Gavel writes: an agent's note of the same name would pass for one.
RESERVED_DIAGNOSTIC_KINDS: Final = frozenset(
    {"NeedsHumanReview", "FactCollectionRequested", "LateExecutionReport", "NoFeasibleProposal", "ShadowDifference"}
)
# Names by which people find decisions and notices in the log: nothing else may look like one.
RESERVED_EVENT_NAMES: Final = RESERVED_DIAGNOSTIC_KINDS.union(DECISION_NAME.values(), SYSTEM_FACT_KEY)
_RESERVED_DIAGNOSTIC_DETAILS: Final = frozenset({"fact_collection", "late_execution", "shadow_difference"})
_NOTHING: Final[frozenset[EventCategory.ValueType]] = frozenset()
_CHANNELS: Final = frozenset(ObservedFrom.values()) - {fact_pb2.OBSERVED_FROM_UNSPECIFIED}
_SENSES: Final = frozenset(
    {fact_pb2.OBSERVED_FROM_DB, fact_pb2.OBSERVED_FROM_API, fact_pb2.OBSERVED_FROM_WEBHOOK, fact_pb2.OBSERVED_FROM_SENSOR}
)


def check(envelope: Envelope, header: Header, payload: str) -> None:
    """Refuse what its producer may not publish; `header` and `payload` are the envelope's. Raises ServiceError PERMISSION_DENIED."""
    category = CATEGORY_OF_PAYLOAD[payload]
    if category == DECISION:
        raise ServiceError(
            error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED, "a DECISION_EVENT is made by the arbitrator alone; submit a proposal instead"
        )
    if category not in CATEGORIES_OF_PRODUCER.get(header.producer_type, _NOTHING):
        what = EventCategory.Name(category).removeprefix("EVENT_CATEGORY_")
        raise ServiceError(
            error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED,
            f"a producer of type {_name(header.producer_type)} may not publish {'an' if what[0] in 'AEO' else 'a'} {what}",
        )
    if header.event_name in RESERVED_EVENT_NAMES:
        raise _reserved(f"event_name {header.event_name} is the name of an event that only the server makes")
    if header.producer_id == GAVEL:
        raise ServiceError(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, 'producer.id "gavel" is the server\'s own')
    match payload:
        case "fact":
            _check_fact(header, envelope.fact)
        case "agent_diagnostic":
            diagnostic = envelope.agent_diagnostic
            if diagnostic.kind in RESERVED_DIAGNOSTIC_KINDS or diagnostic.WhichOneof("detail") in _RESERVED_DIAGNOSTIC_DETAILS:
                raise _reserved("agent_diagnostic of this kind is a notice of the server's own")


def _check_fact(header: Header, fact: Fact) -> None:
    if fact.WhichOneof("system") is not None:
        raise _reserved("fact.system is the server's own; use the call that makes such a fact")
    derived = is_derived(fact)
    reactor = header.producer_type == common_pb2.PRODUCER_TYPE_SYSTEM and header.producer_id == FACT_DERIVATION_REACTOR
    if derived != reactor:
        raise _reserved(f'derivation fields and the producer id "{FACT_DERIVATION_REACTOR}" go together: both are the reactor\'s')
    # A channel that nobody knows is a mistake in the payload, which is looked at later.
    if fact.observed_from in _CHANNELS and fact.observed_from not in channels(header.producer_type, derived=derived):
        raise _reserved(
            f"observed_from {ObservedFrom.Name(fact.observed_from)} is not a channel of producer type {_name(header.producer_type)}"
        )


def channels(producer_type: ProducerType.ValueType, *, derived: bool) -> frozenset[ObservedFrom.ValueType]:
    """Return the channels through which such a producer may speak (seeds 002 §4.7.2)."""
    if derived:
        return frozenset({fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK})
    if producer_type == common_pb2.PRODUCER_TYPE_SYSTEM:
        return frozenset({fact_pb2.OBSERVED_FROM_HUMAN_INPUT})
    return _SENSES


def _reserved(message: str) -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_FIELD_RESERVED, message)


def _name(producer_type: ProducerType.ValueType) -> str:
    return ProducerType.Name(producer_type).removeprefix("PRODUCER_TYPE_")

"""Permissions: which producer may publish which category, and the fields reserved for Gavel (constitution §4.9).

Without authentication the server takes the producer from the request, and listens only on loopback or a Unix socket. It checks every
request against the matrix all the same.
"""

from __future__ import annotations

from typing import Final

from gavel.v1 import common_pb2, error_pb2, fact_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact, ObservedFrom
from gavel_rules.derivation import is_derived
from gavel_rules.events.envelope_header import EnvelopeHeader
from gavel_rules.events.kinds import CATEGORY_OF_PAYLOAD, DECISION, DECISION_NAME, FACT_DERIVATION_REACTOR, GAVEL, SYSTEM_FACT_KEY
from gavel_rules.events.permissions import CATEGORIES_OF_PRODUCER

from gavel_server.errors import ServiceError

# Diagnostics that only Gavel writes; an agent's diagnostic of the same kind could be mistaken for one.
RESERVED_DIAGNOSTIC_KINDS: Final = frozenset(
    {
        "NeedsHumanReview",
        "DerivationFailed",
        "FactCollectionRequested",
        "LateExecutionReport",
        "NoFeasibleProposal",
        "ShadowDifference",
        "AccessRefused",
        "ReviewEscalated",
    }
)
# Names by which people find decisions and notices in the log; no other event may have them.
RESERVED_EVENT_NAMES: Final = RESERVED_DIAGNOSTIC_KINDS.union(DECISION_NAME.values(), SYSTEM_FACT_KEY)
_RESERVED_DIAGNOSTIC_DETAILS: Final = frozenset(
    {"fact_collection", "late_execution", "shadow_difference", "access_refused", "review_escalated"}
)
_NOTHING: Final[frozenset[EventCategory.ValueType]] = frozenset()
_CHANNELS: Final = frozenset(ObservedFrom.values()) - {fact_pb2.OBSERVED_FROM_UNSPECIFIED}
_SENSES: Final = frozenset(
    {fact_pb2.OBSERVED_FROM_DB, fact_pb2.OBSERVED_FROM_API, fact_pb2.OBSERVED_FROM_WEBHOOK, fact_pb2.OBSERVED_FROM_SENSOR}
)


def check(envelope: Envelope, header: EnvelopeHeader, payload: str) -> None:
    """Check that the producer may publish this event; `header` and `payload` are the envelope's. Raises ServiceError PERMISSION_DENIED."""
    category = CATEGORY_OF_PAYLOAD[payload]
    if category == DECISION:
        raise ServiceError(
            error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED, "only the arbitrator makes a DECISION_EVENT; submit a proposal instead"
        )
    if category not in CATEGORIES_OF_PRODUCER.get(header.producer_type, _NOTHING):
        what = EventCategory.Name(category).removeprefix("EVENT_CATEGORY_")
        producers = sorted(_name(one) for one, categories in CATEGORIES_OF_PRODUCER.items() if category in categories)
        raise ServiceError(
            error_pb2.ERROR_REASON_CATEGORY_NOT_ALLOWED,
            f"a producer of type {_name(header.producer_type)} may not publish {'an' if what[0] in 'AEO' else 'a'} {what}; "
            f"those of type {', '.join(producers)} may",
        )
    if header.event_name in RESERVED_EVENT_NAMES:
        raise _reserved_field_error(f"event_name {header.event_name} is reserved for an event of the server")
    if header.producer_id == GAVEL:
        raise ServiceError(error_pb2.ERROR_REASON_PRODUCER_NOT_ALLOWED, 'producer.id "gavel" is reserved for the server')
    match payload:
        case "fact":
            _check_fact(header, envelope.fact)
        case "agent_diagnostic":
            diagnostic = envelope.agent_diagnostic
            if diagnostic.kind in RESERVED_DIAGNOSTIC_KINDS or diagnostic.WhichOneof("detail") in _RESERVED_DIAGNOSTIC_DETAILS:
                raise _reserved_field_error("agent_diagnostic of this kind is reserved for the server")


def _check_fact(header: EnvelopeHeader, fact: Fact) -> None:
    if fact.WhichOneof("system") is not None:
        raise _reserved_field_error("fact.system is reserved for the server; use the call that records such a fact")
    derived = is_derived(fact)
    reactor = header.producer_id == FACT_DERIVATION_REACTOR  # of any type: rules name sources by the id alone
    if derived != reactor or (reactor and header.producer_type != common_pb2.PRODUCER_TYPE_SYSTEM):
        raise _reserved_field_error(
            f'derivation fields and the producer id "{FACT_DERIVATION_REACTOR}" go together: both are reserved for the reactor'
        )
    # An unknown channel is a violation of the payload, which is checked later.
    if fact.observed_from in _CHANNELS and fact.observed_from not in channels(header.producer_type, derived=derived):
        raise _reserved_field_error(
            f"observed_from {ObservedFrom.Name(fact.observed_from)} is not a channel of producer type {_name(header.producer_type)}"
        )


def channels(producer_type: ProducerType.ValueType, *, derived: bool) -> frozenset[ObservedFrom.ValueType]:
    """Return the channels that a producer of this type may use (constitution §4.7.2)."""
    if derived:
        return frozenset({fact_pb2.OBSERVED_FROM_EXECUTOR_FEEDBACK})
    if producer_type == common_pb2.PRODUCER_TYPE_SYSTEM:
        return frozenset({fact_pb2.OBSERVED_FROM_HUMAN_INPUT})
    return _SENSES


def _reserved_field_error(message: str) -> ServiceError:
    return ServiceError(error_pb2.ERROR_REASON_FIELD_RESERVED, message)


def _name(producer_type: ProducerType.ValueType) -> str:
    return ProducerType.Name(producer_type).removeprefix("PRODUCER_TYPE_")

"""The citations of proposals: what newer evidence replaces, and what a proposal with too many leaves out."""

from __future__ import annotations

from gavel.v1.common_pb2 import (
    TRUST_TIER_2_TOOL_OBSERVATION,
    TRUST_TIER_3_AGENT_INFERENCE,
    EventReference,
    Producer,
    TrustTier,
)
from gavel.v1.decision_pb2 import FactRequirement
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.projection_service_pb2 import ProjectedFact, ProjectedObservation
from gavel_client import fact_envelope, observation_envelope
from gavel_client.agents.citations import CITATIONS_MAX, Citations, Statement
from gavel_rules.limits import BASED_ON_EVENTS_MAX

ORDERS = Producer(id="orders-db")


def fact(number: int, key: str = "order.status", source: Producer = ORDERS) -> Envelope:
    """Return a recorded fact."""
    event = fact_envelope("order/1", source, key=key, value=number)
    event.sequence_number = number
    return event


def observation(number: int, *keys: str, tier: TrustTier.ValueType = TRUST_TIER_2_TOOL_OBSERVATION) -> Envelope:
    """Return a recorded observation of the tool that has the name of the producer of facts."""
    fields = dict.fromkeys(keys, number)
    event = observation_envelope("order/1", Producer(id="agent"), source_tool=ORDERS.id, extracted_fields=fields, evidence=Envelope())
    event.sequence_number, event.observation.trust_tier = number, tier
    return event


def numbers(citations: Citations) -> list[int]:
    """Return the sequence numbers of what is cited."""
    return [one.sequence_number for one in citations.references]


def test_the_newest_statement_replaces_older_ones() -> None:
    """An event leaves once newer ones repeat all that it states; those of another source, kind or tier, and older ones, repeat nothing."""
    citations = Citations([EventReference(event_id="own", sequence_number=1)])
    assert citations.add_event(observation(10, "order.status", "order.total"))
    assert citations.add_event(fact(11))
    assert citations.add_event(fact(12, source=Producer(id="depot")))
    assert citations.add_event(observation(13, "order.status", "order.total", tier=TRUST_TIER_3_AGENT_INFERENCE))
    assert citations.add_event(observation(14, "order.total"))
    assert [1, 10, 11, 12, 13, 14] == numbers(citations)
    citations.add_event(observation(15, "order.status"))
    citations.add_event(fact(16))
    assert [1, 12, 13, 14, 15, 16] == numbers(citations)
    citations.add_event(observation(9, "order.total"))
    assert [1, 12, 13, 14, 15, 16, 9] == numbers(citations)


def test_rows_of_a_projection() -> None:
    """A row of a projection states what its event states: a newer event replaces it, once it repeats the last of the event's rows."""
    citations = Citations()
    tier = TRUST_TIER_2_TOOL_OBSERVATION
    both = EventReference(event_id="both", sequence_number=20)
    for key in ("order.status", "order.total"):
        citations.add(both, [Statement.of_row("order/1", ProjectedObservation(key=key, source_tool=ORDERS.id, trust_tier=tier))])
    one = EventReference(event_id="one", sequence_number=21)
    citations.add(one, [Statement.of_row("order/1", ProjectedFact(key="order.status", producer=ORDERS))])
    citations.add_event(observation(22, "order.status"))
    assert [20, 21, 22] == numbers(citations)
    citations.add_event(observation(23, "order.total"))
    citations.add_event(fact(24))
    assert [22, 23, 24] == numbers(citations)


def test_at_most_as_many_as_the_contract_allows() -> None:
    """Beyond the contract's limit the required keys are cited first, then the agent's own events, then the newest."""
    assert BASED_ON_EVENTS_MAX == CITATIONS_MAX
    citations = Citations([EventReference(event_id=f"own-{number}", sequence_number=number) for number in range(100, 350)])
    citations.require([FactRequirement(subject="order/1", key="order.status")])
    citations.add_event(fact(1))
    for number in range(2, 12):
        citations.add_event(fact(number, f"order.note-{number}"))
    assert [*range(100, 350), 1, *range(7, 12)] == numbers(citations)
    citations = Citations([EventReference(event_id=f"own-{number}", sequence_number=number) for number in range(1, 257)])
    citations.require([FactRequirement(subject="order/1", key="order.status")])
    citations.add_event(fact(999))
    assert [*range(2, 257), 999] == numbers(citations)

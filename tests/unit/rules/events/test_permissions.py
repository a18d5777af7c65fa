"""The permission matrix (constitution §4.9)."""

from __future__ import annotations

from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.kinds import CATEGORY_OF_PAYLOAD
from gavel_rules.events.permissions import CATEGORIES_OF_PRODUCER


def test_permission_matrix() -> None:
    """The matrix is that of the constitution; every category has a payload and a producer type that may publish it."""

    def names(producer_type: ProducerType.ValueType) -> set[str]:
        categories = CATEGORIES_OF_PRODUCER[producer_type]
        return {EventCategory.Name(category).removeprefix("EVENT_CATEGORY_").removesuffix("_EVENT") for category in categories}

    agent = {"PROPOSAL", "OBSERVATION", "TOOL_CALL", "TOOL_RESULT", "AGENT_DIAGNOSTIC"}
    assert [{"FACT"}] * 3 == [
        names(common_pb2.PRODUCER_TYPE_SENSOR),
        names(common_pb2.PRODUCER_TYPE_API),
        names(common_pb2.PRODUCER_TYPE_DATABASE_SNAPSHOT),
    ]
    assert agent == names(common_pb2.PRODUCER_TYPE_AGENT)
    assert {"DECISION"} == names(common_pb2.PRODUCER_TYPE_ARBITRATOR)
    assert {"EXECUTION"} == names(common_pb2.PRODUCER_TYPE_EXECUTOR)
    assert {"FACT", "AGENT_DIAGNOSTIC"} == names(common_pb2.PRODUCER_TYPE_SYSTEM)
    assert {"TOOL_CALL", "TOOL_RESULT"} == names(common_pb2.PRODUCER_TYPE_TOOL_RUNTIME)
    assert common_pb2.PRODUCER_TYPE_UNSPECIFIED not in CATEGORIES_OF_PRODUCER
    assert set(CATEGORY_OF_PAYLOAD.values()) == set().union(*CATEGORIES_OF_PRODUCER.values())
    assert {field.name for field in Envelope.DESCRIPTOR.oneofs_by_name["payload"].fields} == set(CATEGORY_OF_PAYLOAD)

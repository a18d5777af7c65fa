"""What every event has in common: derived ids, producers' ids, times, and who may publish what (seeds 002 §4.2.1, §4.9)."""

from __future__ import annotations

import re
import uuid

import pytest
from gavel.v1 import common_pb2
from gavel.v1.common_pb2 import EventCategory, ProducerType
from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events import (
    CATEGORIES_OF_PRODUCER,
    CATEGORY_OF_PAYLOAD,
    derived_event_id,
    execution_id_of,
    fact_keys,
    is_uuid,
    milliseconds,
    set_timestamp,
    timestamp,
    uuid_problem,
)
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.core.driver import event_id, fact_envelope, observation_envelope

CAUSE = event_id(1)


@given(st.uuids(), st.integers(1, 2**62), st.text(max_size=20), st.integers(0, 100))
def test_derived_ids_are_uuid_version_8(cause: uuid.UUID, number: int, kind: str, ordinal: int) -> None:
    """Whatever the cause, its derived id is a canonical UUID of version 8 and the RFC's variant."""
    derived = derived_event_id(str(cause), number, kind, ordinal)
    assert derived == str(uuid.UUID(derived))
    assert (8, uuid.RFC_4122) == (uuid.UUID(derived).version, uuid.UUID(derived).variant)
    assert "reserved" in uuid_problem(derived)


def test_derived_ids_never_change() -> None:
    """Ids are hashes that logs hold: every later build has to make the same ones."""
    assert "0107c92d-ebc7-8294-a1f6-f9fb4dc6e9ce" == derived_event_id(CAUSE, 7, "decision")
    assert "be3ffc40-4084-8d0a-972c-198cc4d3b662" == derived_event_id(CAUSE, 7, "decision", 1)
    assert "exec_322e5ba4a28a" == execution_id_of(CAUSE, 1)


def test_every_part_of_the_cause_counts() -> None:
    """Ids differ when any of cause, number, kind and ordinal differs, and no two parts run into each other."""
    ids = [
        derived_event_id(CAUSE, 7, "decision"),
        derived_event_id(event_id(2), 7, "decision"),
        derived_event_id(CAUSE, 8, "decision"),
        derived_event_id(CAUSE, 7, "expired"),
        derived_event_id(CAUSE, 7, "decision", 1),
        derived_event_id(CAUSE, 71, "decision"),
    ]
    assert len(ids) == len(set(ids))


def test_execution_ids() -> None:
    """An attempt's id is "exec_" and 12 hex digits, another one per decision and attempt."""
    ids = [execution_id_of(event_id(decision), attempt) for decision in range(5) for attempt in range(5)]
    assert 25 == len(set(ids))
    assert {17} == {len(identifier) for identifier in ids}
    assert all(identifier.startswith("exec_") and int(identifier[5:], 16) >= 0 for identifier in ids)


@pytest.mark.parametrize(
    "text",
    [
        "018bcfe5-6800-7000-8000-000000000001",
        "00000000-0000-4000-8000-000000000001",
        "c232ab00-9414-11ec-b3c8-9f6bdeced846",
    ],
)
def test_producers_may_choose_any_version_but_8(text: str) -> None:
    """A canonical UUID of another version is fine."""
    assert "" == uuid_problem(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("00000000-0000-8000-8000-000000000001", "reserved"),
        ("00000000-0000-0000-0000-000000000000", "UUID"),
        ("00000000-0000-4000-c000-000000000001", "UUID"),
        ("018BCFE5-6800-7000-8000-000000000001", "canonical"),
        ("018bcfe5680070008000000000000001", "canonical"),
        ("{018bcfe5-6800-7000-8000-000000000001}", "canonical"),
        ("urn:uuid:018bcfe5-6800-7000-8000-000000000001", "canonical"),
        ("018bcfe5-6800-7000-8000-00000000000", "UUID"),
        ("018bcfe5-6800-7000-8000-00000000000g", "UUID"),
        ("018bcfe5-6800-7000-8000-000000000001\n", "canonical"),
        ("", "UUID"),
        ("\u0661" * 32, "canonical"),
    ],
)
def test_other_ids_are_refused(text: str, problem: str) -> None:
    """Gavel's own version 8, the nil UUID, another variant, other spellings and other texts are refused with the reason."""
    assert problem in uuid_problem(text)


@given(st.uuids().map(str), st.integers(0, 36), st.text(max_size=2), st.integers(0, 2))
def test_canonical_uuids(identifier: str, at: int, put: str, instead_of: int) -> None:
    """A UUID is told from what comes of it when any of its characters are replaced, taken away or added to."""
    assert is_uuid(identifier)
    text = identifier[:at] + put + identifier[at + instead_of :]
    assert is_uuid(text) == (re.fullmatch("[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", text) is not None)


@given(st.integers(0, 253_402_300_799_999))
def test_times_come_back(at_ms: int) -> None:
    """Milliseconds become a Timestamp and come back the same."""
    assert at_ms == milliseconds(timestamp(at_ms))
    target = Timestamp(seconds=9, nanos=9)
    set_timestamp(target, at_ms)
    assert timestamp(at_ms) == target


@pytest.mark.parametrize("nanos", [0, 1, 999_999])
def test_times_are_rounded_down(nanos: int) -> None:
    """What is finer than a millisecond does not count."""
    assert 5_001 == milliseconds(Timestamp(seconds=5, nanos=1_000_000 + nanos))


def test_who_may_publish_what() -> None:
    """The matrix of seeds 002 §4.9, word for word, and every category has a payload and somebody who may publish it."""

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
    assert common_pb2.PRODUCER_TYPE_UNSPECIFIED not in CATEGORIES_OF_PRODUCER
    assert set(CATEGORY_OF_PAYLOAD.values()) == set().union(*CATEGORIES_OF_PRODUCER.values())
    assert {field.name for field in Envelope.DESCRIPTOR.oneofs_by_name["payload"].fields} == set(CATEGORY_OF_PAYLOAD)


def test_the_keys_that_an_event_speaks_of() -> None:
    """A fact speaks of one key, an observation of each that it extracts, sorted; other events of none."""
    observation = observation_envelope("b", 1)
    observation.observation.extracted_fields["a"].number_value = 2
    assert [("k",), ("a", "b"), ()] == [fact_keys(envelope) for envelope in (fact_envelope("k", 1), observation, Envelope())]

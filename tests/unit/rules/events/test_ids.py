"""Event ids: those that Gavel derives and those that producers choose (constitution §4.2.1)."""

from __future__ import annotations

import re
import uuid

import pytest
from gavel_rules.events.ids import derived_event_id, execution_id_of, is_uuid, uuid7, uuid_problem
from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import event_id

CAUSE = event_id(1)


@given(st.uuids(), st.integers(1, 2**62), st.text(max_size=20), st.integers(0, 100))
def test_derived_ids_are_uuid_version_8(cause: uuid.UUID, number: int, kind: str, ordinal: int) -> None:
    """A derived id is a canonical UUID of version 8 with the variant of RFC 9562, whatever the cause."""
    derived = derived_event_id(str(cause), number, kind, ordinal)
    assert derived == str(uuid.UUID(derived))
    assert (8, uuid.RFC_4122) == (uuid.UUID(derived).version, uuid.UUID(derived).variant)
    assert "reserved" in uuid_problem(derived)


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_uuid_version_7_begins_with_the_time(unix_ms: int, random_bytes: bytes) -> None:
    """A UUIDv7 is canonical, valid for producers, and begins with its time."""
    text = uuid7(unix_ms, random_bytes)
    parsed = uuid.UUID(text)
    assert (text, 7, uuid.RFC_4122, unix_ms) == (str(parsed), parsed.version, parsed.variant, parsed.int >> 80)
    assert "" == uuid_problem(text)


def test_uuid_version_7_keeps_the_random_bits() -> None:
    """A UUIDv7 holds 74 of the 80 random bits; version and variant replace the others."""
    assert "00000000-0000-7fff-bfff-ffffffffffff" == uuid7(0, b"\xff" * 10)
    assert "ffffffff-ffff-7000-8000-000000000000" == uuid7(2**48 - 1, bytes(10))


def test_derived_ids_never_change() -> None:
    """Derived ids stay the same in all builds: logs hold them."""
    assert "0107c92d-ebc7-8294-a1f6-f9fb4dc6e9ce" == derived_event_id(CAUSE, 7, "decision")
    assert "be3ffc40-4084-8d0a-972c-198cc4d3b662" == derived_event_id(CAUSE, 7, "decision", 1)
    assert "exec_322e5ba4a28a" == execution_id_of(CAUSE, 1)


def test_ids_depend_on_every_part_of_the_cause() -> None:
    """Ids differ if the cause, number, kind or ordinal differs; adjacent parts cannot be confused."""
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
    """An attempt's id is "exec_" and 12 hex digits, and unique for its decision and number."""
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
    """Producers may choose a canonical UUID of any other version."""
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
    """Version 8, the nil UUID, other variants, other spellings and other texts have a problem."""
    assert problem in uuid_problem(text)


@given(st.uuids().map(str), st.integers(0, 36), st.text(max_size=2), st.integers(0, 2))
def test_canonical_uuids(identifier: str, at: int, put: str, instead_of: int) -> None:
    """Only the canonical form is a UUID: replacing, removing or adding characters breaks it."""
    assert is_uuid(identifier)
    text = identifier[:at] + put + identifier[at + instead_of :]
    assert is_uuid(text) == (re.fullmatch("[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", text) is not None)

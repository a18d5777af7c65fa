"""Counting the parts of a message in its bytes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, StreamProposalsRequest, SubmitProposalRequest
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.fact_pb2 import Fact
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.values import python_to_value
from gavel_server.rpc.wire import DEPTH_MAX, OWN_FIELDS_MAX, Layout, count_fields, count_items, last_text_field, layout_of, text_field
from google.protobuf.message import DecodeError, Message
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from hypothesis import given
from hypothesis import strategies as st

ENOUGH = 1_000_000
REQUEST: Layout = layout_of(SubmitProposalRequest.DESCRIPTOR)
BATCH: Layout = layout_of(BatchSubmitProposalsRequest.DESCRIPTOR)


def request(**fields: Any) -> bytes:
    """Return the bytes of a request with a proposal of these fields."""
    return SubmitProposalRequest(envelope=Envelope(proposal=Proposal(**fields))).SerializeToString()


def test_items_of_a_batch() -> None:
    """Only the message's own fields of the number count, however they are nested or interleaved."""
    data = BatchSubmitProposalsRequest(bus="b", envelopes=[Envelope(proposal=Proposal())] * 300).SerializeToString()
    assert 300 == count_items(data, 2, ENOUGH)
    assert 600 == count_items(data + data, 2, ENOUGH)
    assert 1 == count_items(data, 1, ENOUGH)


def test_counts_end_at_their_limit() -> None:
    """A count ends right after its limit, and does not read what follows."""
    assert 11 == count_items(b"\x12\x00" * 1_000 + b"\xff", 2, 10)
    assert 11 == count_fields(b"\x12\x00" * 1_000 + b"\xff", BATCH, 10)
    assert count_fields(request(required_facts=[""] * 1_000) + b"\xff", REQUEST, 10) > 10


def test_fields_of_nested_messages() -> None:
    """Fields count in every message that can hold a list, and each item of a list counts."""
    assert 2 + 3 == count_fields(request(required_facts=["a", "", "b"]), REQUEST, ENOUGH)
    # The list: params, its entry, key and value, the list's kind, two items with their kinds.
    params = Struct(fields={"k": python_to_value([1, 2])})
    assert 2 + 1 + 1 + 2 + 1 + 2 + 2 == count_fields(request(params=params), REQUEST, ENOUGH)


def test_long_tags_and_lengths() -> None:
    """Tags and lengths of several bytes count like short ones."""
    assert 2 + 1 == count_fields(request(expected_outcome="x" * 20_000), REQUEST, ENOUGH)
    assert 3 == count_fields(Envelope(bus="b", chain_hash=b"h", fact=Fact()).SerializeToString(), Layout(), ENOUGH)


def _nested_value(depth: int) -> Value:
    value = Value(number_value=1)
    for _ in range(depth):
        value = Value(list_value=ListValue(values=[value]))
    return value


def test_depth() -> None:
    """Deep nesting is refused before it exhausts the stack, and whatever protobuf parses can be counted."""
    layout = layout_of(Value.DESCRIPTOR)
    assert 3 * 2 + 1 == count_fields(_nested_value(3).SerializeToString(), layout, ENOUGH)
    data = b""
    for _ in range(3 * DEPTH_MAX):
        data = b"\x0a" + _varint(len(data)) + data
        data = b"\x32" + _varint(len(data)) + data
    with pytest.raises(ValueError, match="nested deeper"):
        count_fields(data, layout, ENOUGH)
    with pytest.raises(DecodeError):
        Value.FromString(data)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize(
    "data",
    [
        b"\x12",
        b"\x12\x05abc",
        b"\x12\xff\xff\xff\xff\xff\x01",
        b"\xff\xff\xff\xff\xff\x01\x00",
        b"\x08" + b"\xff" * 10,
        b"\x0f\x00",
        b"\x09\x00",
    ],
    ids=["no-length", "cut", "long-length", "long-tag", "long-number", "wire-type", "cut-fixed"],
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    """What is not a message raises ValueError, alone and after fields that are fine."""
    for bad in (data, request(required_facts=["a"]) + data):
        with pytest.raises(ValueError, match=r"."):
            count_fields(bad, REQUEST, ENOUGH)
        with pytest.raises(ValueError, match=r"."):
            count_items(bad, 2, ENOUGH)


@given(st.binary(max_size=60))
def test_arbitrary_bytes(data: bytes) -> None:
    """Whatever protobuf takes for a request without groups can be counted; nothing else than ValueError is raised."""
    try:
        count_fields(data, REQUEST, ENOUGH)
    except ValueError:
        with_groups = any(byte & 7 in (3, 4) for byte in data)
        parsed: Message | None = None
        with contextlib.suppress(DecodeError):
            parsed = SubmitProposalRequest.FromString(data)
        assert parsed is None or with_groups


def test_text_of_a_field() -> None:
    """The first text of a field is read without the rest; a field that is missing or not text reads as empty."""
    data = StreamProposalsRequest(request_id="r-1", bus="b", envelope=Envelope(bus="x" * 1000)).SerializeToString()
    assert ("r-1", "b") == (text_field(data, 1), text_field(data, 2))
    assert "r-1" == text_field(data[:-500], 1)
    assert ("", "", "") == (text_field(b"", 1), text_field(b"\x08\x01", 1), text_field(b"\x0a\x01\xff", 1))


def test_a_text_is_not_searched_for_without_end() -> None:
    """The last text of a field is found among as many fields as a request may have; of more, no further one is read."""
    text = b"\x12\x03bus"
    assert "bus" == last_text_field(b"\x0a\x00" * (OWN_FIELDS_MAX - 1) + text, 2)
    with pytest.raises(ValueError, match=f"more than {OWN_FIELDS_MAX} fields"):
        last_text_field(b"\x0a\x00" * OWN_FIELDS_MAX + b"\xff", 2)

"""Decoding of requests: limits before protobuf, and nothing unknown behind it."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from gavel.v1.arbitration_service_pb2 import BatchSubmitProposalsRequest, SubmitProposalRequest
from gavel.v1.common_pb2 import EventReference, Producer
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.event_service_pb2 import GetEventRequest, ListEventsRequest
from gavel.v1.proposal_pb2 import Proposal
from gavel_rules.limits import BATCH_BYTES_MAX, BATCH_ITEMS_MAX, MESSAGE_BYTES_MAX, TEXT_BYTES_MAX
from gavel_server.errors import ServiceError
from gavel_server.process import time_slice
from gavel_server.rpc import decoding
from gavel_server.rpc.decoding import RequestDecoder
from gavel_server.rpc.limits import BATCH_FIELDS_MAX, READ_BYTES_MAX, REQUEST_FIELDS_MAX, UNCOUNTED_BYTES_MAX, request_limit
from gavel_server.rpc.service_descriptors import SERVICES
from gavel_server.rpc.wire import OWN_FIELDS_MAX
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from tests.support.calls import call_context

SUBMIT = "gavel.v1.ArbitrationService/SubmitProposal"
BATCH = "gavel.v1.ArbitrationService/BatchSubmitProposals"
PUBLISH_BATCH = "gavel.v1.EventService/BatchPublishEvents"
METHODS = {f"{service.full_name}/{method.name}": GetMessageClass(method.input_type) for service in SERVICES for method in service.methods}


def violation(method: str, request_class: type[Message], data: bytes) -> tuple[str, str]:
    """Return the one violation of a request that must be refused."""
    with pytest.raises(ServiceError) as refused:
        RequestDecoder(method, request_class).decode(data)
    (only_violation,) = refused.value.violations
    return only_violation


def field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    size = len(content)
    head = (number << 3 | 2).to_bytes(1, "little") if number < 16 else bytes([(number << 3 | 2) & 0x7F | 0x80, number >> 4])
    length = bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return head + bytes([*length, size]) + content


@pytest.mark.parametrize("method", METHODS)
def test_bytes_of_every_method(method: str) -> None:
    """A request one byte over its method's limit is refused unparsed, with the limit in the violation."""
    bytes_max = request_limit(method).bytes_max
    assert READ_BYTES_MAX <= bytes_max <= BATCH_BYTES_MAX
    assert ("request", f"is larger than {bytes_max} bytes") == violation(method, METHODS[method], b"\xff" * (bytes_max + 1))


def test_limits_name_methods_of_the_contract() -> None:
    """Writes have limits of their own, and the reads have the default."""
    writes = {method for method in METHODS if request_limit(method).bytes_max > READ_BYTES_MAX}
    assert {"ListEvents", "GetProjection", "BeginExecution", "VerifyReplay"}.isdisjoint(name.partition("/")[2] for name in writes)
    assert {SUBMIT, BATCH, PUBLISH_BATCH, "gavel.v1.ExecutionService/ReportExecution", "gavel.v1.RuleSetService/DeployRuleSet"} <= writes


@pytest.mark.parametrize("method", [BATCH, PUBLISH_BATCH])
def test_many_empty_envelopes(method: str) -> None:
    """Millions of empty envelopes are refused without an object for each."""
    data = b"\x12\x00" * (BATCH_BYTES_MAX // 2)
    tracemalloc.start()
    try:
        assert ("envelopes", f"has more than {BATCH_ITEMS_MAX} items") == violation(method, METHODS[method], data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


PROPOSAL, PARAMS, LIST = 21, 2, 6


@pytest.mark.parametrize(
    "content",
    [
        field(PROPOSAL, field(8, b"") * REQUEST_FIELDS_MAX),
        field(PROPOSAL, field(9, b"") * REQUEST_FIELDS_MAX),
        field(PROPOSAL, field(PARAMS, field(1, field(2, field(LIST, field(1, b"") * REQUEST_FIELDS_MAX))))),
        field(22, field(7, b"") * REQUEST_FIELDS_MAX),
        field(PROPOSAL, b"") * REQUEST_FIELDS_MAX,
    ],
    ids=["facts", "citations", "values", "of-a-decision", "merged"],
)
def test_many_items_in_an_envelope(content: bytes) -> None:
    """A list or value with more items than REQUEST_FIELDS_MAX is refused; in a batch the limit is BATCH_FIELDS_MAX in all."""
    problem = ("request", f"holds more than {REQUEST_FIELDS_MAX} fields and list items")
    assert problem == violation(SUBMIT, SubmitProposalRequest, field(2, content))
    envelopes = field(2, content) * (BATCH_FIELDS_MAX // REQUEST_FIELDS_MAX)
    assert ("request", f"holds more than {BATCH_FIELDS_MAX} fields and list items") == violation(
        BATCH, BatchSubmitProposalsRequest, envelopes
    )


def test_requests_within_the_limits() -> None:
    """A request at its limits is decoded: large texts, many citations, a full batch."""
    text = SubmitProposalRequest(envelope=Envelope(proposal=Proposal(expected_outcome="x" * (MESSAGE_BYTES_MAX - 100))))
    assert text == RequestDecoder(SUBMIT, SubmitProposalRequest).decode(text.SerializeToString())
    citations = [EventReference(event_id="e" * 36, sequence_number=number) for number in range(1, 101)]
    batch = BatchSubmitProposalsRequest(envelopes=[Envelope(proposal=Proposal(based_on_events=citations))] * BATCH_ITEMS_MAX)
    assert batch.ByteSize() > UNCOUNTED_BYTES_MAX
    assert batch == RequestDecoder(BATCH, BatchSubmitProposalsRequest).decode(batch.SerializeToString())


def test_undecodable_bytes() -> None:
    """Bytes that are not a message are one violation, whether the count or protobuf finds out."""
    for data in (b"\xff", b"\x12\xff" + b"\xff" * UNCOUNTED_BYTES_MAX * 2, field(2, b"\xff" * 70_000)):
        problem = violation(BATCH, BatchSubmitProposalsRequest, data)
        assert "request" == problem[0]
        assert problem[1].startswith("is not a message of the contract: ")


UNKNOWN = field(9, b"unknown") + b"\xc0\x3e\x05" + b"\x8b\x7d\x08\x01\x8c\x7d"  # a text, a number (1000), a group (2001)


def _rewrite(message: Message) -> bytes:
    parts = []
    for descriptor, value in message.ListFields():
        single = type(message)()
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            getattr(single, descriptor.name).MergeFrom(value) if descriptor.is_repeated else setattr(single, descriptor.name, value)
            parts.append(single.SerializeToString())
            continue
        items = value if descriptor.is_repeated else [value]
        parts.extend(field(descriptor.number, _rewrite(item) + b"\xc0\x3e\x05") for item in items)
    return b"".join(parts)


def test_unknown_fields_are_discarded() -> None:
    """Fields that the contract does not know are gone at every depth, in maps and lists too, and the rest is as sent."""
    known = SubmitProposalRequest(
        bus="b",
        envelope=Envelope(
            subject="order/1",
            producer=Producer(id="agent"),
            occurred_at=Timestamp(seconds=5),
            proposal=Proposal(action_type="a.b", based_on_events=[EventReference(event_id="e")], required_facts=["k"], params=Struct()),
        ),
    )
    data = _rewrite(known) + UNKNOWN
    assert len(data) > len(known.SerializeToString()) + 6 * 3
    decoded = RequestDecoder(SUBMIT, SubmitProposalRequest).decode(data)
    assert known.SerializeToString(deterministic=True) == decoded.SerializeToString(deterministic=True)
    entry = field(1, b"k") + field(2, b"\x20\x01" + UNKNOWN)
    params = field(2, field(21, field(2, field(1, entry))))
    decoded = RequestDecoder(SUBMIT, SubmitProposalRequest).decode(params)
    assert (
        SubmitProposalRequest(envelope=Envelope(proposal=Proposal(params=Struct(fields={"k": Value(bool_value=True)})))).SerializeToString()
        == decoded.SerializeToString()
    )


def reasons(error: ServiceError) -> list[tuple[str, str]]:
    """Return the violations, without what the parser says."""
    return [(name, text.partition(": ")[0]) for name, text in error.violations]


@pytest.mark.parametrize(
    "data",
    [
        field(1, b"bus-1") + field(2, field(4, b"order/1") + UNKNOWN) * 300 + UNKNOWN + field(1, b"bus-2") + field(2, field(9, b"x")),
        field(2, field(PROPOSAL, field(PARAMS, field(1, field(2, field(LIST, field(1, b"") * 1000)))))) * 100,
        # A field of an unknown group is none of the request.
        b"\x8b\x7d" + field(2, b"") * 10 + b"\x8c\x7d" + field(2, b"") * 3,
        field(2, field(4, b"x" * 100)) * (BATCH_ITEMS_MAX + 1),
        field(2, field(PROPOSAL, b"") * 1_000) * (BATCH_FIELDS_MAX // 1_000),
        field(1, b"") * (BATCH_FIELDS_MAX + 1),
        field(2, b"\xff") * 10,
        b"\x12\xff\xff",
        b"",
    ],
    ids=["repeated", "values", "group", "items", "fields", "other-fields", "malformed-item", "malformed", "empty"],
)
async def test_large_batches_are_decoded_in_turns(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that is decoded in turns is the same request, or refused for the same reason."""
    monkeypatch.setattr(decoding, "BATCH_BYTES_AT_ONCE", -1)
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1.0)
    decoder = RequestDecoder(BATCH, BatchSubmitProposalsRequest)
    try:
        expected: Message | list[tuple[str, str]] = decoder.decode(data)
    except ServiceError as error:
        expected = reasons(error)
    try:
        actual: Message | list[tuple[str, str]] = await decoder.decode_in_turns(data, call_context())
    except ServiceError as error:
        actual = reasons(error)
    assert expected == actual


async def test_fields_of_a_batch_itself_have_a_limit_of_their_own() -> None:
    """The first turn of a large batch ends after OWN_FIELDS_MAX fields, and does not read what follows."""
    data = b"\x0a\x00" * decoding.BATCH_BYTES_AT_ONCE + b"\xff"
    with pytest.raises(ServiceError) as refused:
        await RequestDecoder(BATCH, BatchSubmitProposalsRequest).decode_in_turns(data, call_context())
    assert [("request", f"has more than {OWN_FIELDS_MAX} fields of its own")] == reasons(refused.value)


async def test_other_tasks_run_while_a_large_batch_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run between the items of a large batch whose items are slow."""
    monkeypatch.setattr(time_slice, "SLICE_SECONDS", -1.0)  # every item takes longer
    data = field(2, field(4, b"x" * 1_000)) * 100
    decoding_batch = asyncio.create_task(RequestDecoder(BATCH, BatchSubmitProposalsRequest).decode_in_turns(data, call_context()))
    rounds = 0
    while not decoding_batch.done():
        await asyncio.sleep(0)
        rounds += 1
    assert rounds > 100
    assert 100 == len((await decoding_batch).envelopes)


def test_reads_discard_unknown_fields() -> None:
    """A read with fields of a later contract is answered like one without them."""
    for request_class in (GetEventRequest, ListEventsRequest):
        assert request_class(bus="b") == RequestDecoder("gavel.v1.EventService/GetEvent", request_class).decode(b"\x0a\x01b\xc0\x3e\x05")


def test_documents_have_room() -> None:
    """A method that takes a document or a person's reason takes one of the largest size: its limit holds before the request is decoded."""
    large = {"document": MESSAGE_BYTES_MAX, "reason": TEXT_BYTES_MAX + 1}
    methods = [method for service in SERVICES for method in service.methods]
    for method in methods:
        for name in large.keys() & method.input_type.fields_by_name.keys():
            limit = request_limit(f"{method.containing_service.full_name}/{method.name}")
            assert limit.bytes_max > large[name], (method.full_name, name)

"""Canonical forms: UUIDs in lower case, subjects in NFC, whatever way they were sent."""

from __future__ import annotations

import unicodedata
import uuid

from gavel.v1.arbitration_service_pb2 import StreamProposalsRequest
from gavel.v1.common_pb2 import EventReference
from gavel.v1.event_service_pb2 import GetEventRequest, SubscribeEventsRequest
from gavel_rules.limits import SUBJECT_BYTES_MAX
from gavel_server.intake.admission import admit, admit_proposal
from gavel_server.intake.formats import is_subject
from gavel_server.rpc.decoding import RequestDecoder
from hypothesis import given
from hypothesis import strategies as st

from tests.support.driver import ALL_PAYLOADS
from tests.support.envelopes import valid_diagnostic, valid_fact, valid_proposal, valid_tool_call

UUIDS = st.uuids(version=4).map(str)
# Characters that a subject may have between slashes: letters with their marks, digits, and the punctuation of docs/contract.md.
CHARACTERS = st.one_of(st.characters(categories=["L", "M", "Nd"]), st.sampled_from("-._~:@+ "))
PARTS = st.lists(st.text(CHARACTERS, min_size=1, max_size=12), min_size=1, max_size=3)


def in_nfc(text: str) -> str:
    """Return a text in NFC."""
    return unicodedata.normalize("NFC", text)


@given(PARTS)
def test_subjects_of_letters_and_digits_are_admitted(parts: list[str]) -> None:
    """Any letters, digits and the listed punctuation between slashes are a subject, and it is recorded in NFC, however it was sent."""
    subject = "/".join(["order", *parts])
    for sent in (subject, unicodedata.normalize("NFD", subject)):
        if len(in_nfc(sent).encode()) > SUBJECT_BYTES_MAX:
            continue
        envelope = valid_fact()
        envelope.subject = sent
        admit(envelope, "default", ALL_PAYLOADS)
        assert in_nfc(subject) == envelope.subject


@given(st.text(max_size=300))
def test_other_texts_are_no_subjects(text: str) -> None:
    """A subject has only listed characters, is in NFC and has at most SUBJECT_BYTES_MAX bytes."""
    subject = f"order/{text}"
    expected = (
        all(
            part and all(unicodedata.category(one)[0] in "LM" or unicodedata.category(one) == "Nd" or one in "-._~:@+ " for one in part)
            for part in text.replace("_", "-").split("/")
        )
        and in_nfc(subject) == subject
        and len(subject.encode(errors="surrogatepass")) <= SUBJECT_BYTES_MAX
    )
    assert expected == is_subject(subject)


@given(UUIDS, UUIDS, UUIDS)
def test_uuids_in_upper_case(event_id: str, causation_id: str, cited_id: str) -> None:
    """Ids in upper case are admitted and recorded in lower case; the idempotency key is the canonical id."""
    proposal = valid_proposal()
    proposal.event_id = event_id.upper()
    proposal.causation_id = causation_id.upper()
    del proposal.proposal.based_on_events[:]
    proposal.proposal.based_on_events.append(EventReference(event_id=cited_id.upper(), sequence_number=1))
    command, key = admit_proposal(proposal, "default")
    assert event_id == key == command.proposal.event_id == proposal.event_id
    assert causation_id == proposal.causation_id
    assert [(1, cited_id)] == command.proposal.citations
    assert cited_id == proposal.proposal.based_on_events[0].event_id


def test_only_citations_in_upper_case() -> None:
    """A proposal whose other ids are canonical is normalized too."""
    cited_id = str(uuid.uuid4())
    proposal = valid_proposal()
    del proposal.proposal.based_on_events[:]
    proposal.proposal.based_on_events.append(EventReference(event_id=cited_id.upper(), sequence_number=1))
    command, _ = admit_proposal(proposal, "default")
    assert [(1, cited_id)] == command.proposal.citations


def test_ids_in_payloads() -> None:
    """The decision of a tool call and the events of a transition may be in upper case, too."""
    ids = [str(uuid.uuid4()) for _ in range(3)]
    call = valid_tool_call()
    call.tool_call.decision_id, call.tool_call.attempt = ids[0].upper(), 1
    admit(call, "default", ALL_PAYLOADS)
    assert ids[0] == call.tool_call.decision_id
    diagnostic = valid_diagnostic()
    transition = diagnostic.agent_diagnostic.graph_transition
    transition.input_event_ids.append(ids[0].upper())
    transition.output_event_ids.extend([ids[1], ids[2].upper()])
    admit(diagnostic, "default", ALL_PAYLOADS)
    assert (ids[:1], ids[1:]) == ([*transition.input_event_ids], [*transition.output_event_ids])


def test_fields_of_requests() -> None:
    """Requests get their ids and subjects in canonical form when they are decoded; a oneof stays as it was."""
    event_id = str(uuid.uuid4())
    decoder = RequestDecoder("gavel.v1.EventService/GetEvent", GetEventRequest)
    assert event_id == decoder.decode(GetEventRequest(event_id=event_id.upper()).SerializeToString()).event_id
    by_number = GetEventRequest(sequence_number=3)
    assert by_number == decoder.decode(by_number.SerializeToString())
    subscription = RequestDecoder("gavel.v1.EventService/SubscribeEvents", SubscribeEventsRequest)
    request = SubscribeEventsRequest(subject_prefix="order/e\u0301")
    assert "order/\u00e9" == subscription.decode(request.SerializeToString()).subject_prefix
    stream = RequestDecoder("gavel.v1.ArbitrationService/StreamProposals", StreamProposalsRequest)
    verbatim = StreamProposalsRequest(request_id=event_id.upper())
    assert verbatim == stream.decode(verbatim.SerializeToString())

"""The canonical form of what producers may write in several ways: UUIDs in lower case, subjects in NFC.

An event is recorded in canonical form only, so that equal ids and subjects are equal texts. Almost every request is canonical already;
admission therefore calls this only for an envelope that it would refuse otherwise.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Final

from gavel.v1.envelope_pb2 import Envelope
from gavel_rules.events.ids import is_uuid
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message


def canonical_uuid(text: str) -> str:
    """Return a UUID in lower case; any other text as it is."""
    lower = text.lower()
    return lower if lower != text and is_uuid(lower) else text


def canonical_subject(text: str) -> str:
    """Return a subject, or the prefix of one, in NFC."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


# The fields of requests, beside envelopes, that hold UUIDs and subjects. The request_id of a stream is any text, and comes back as sent.
CANONICAL_FORMS: Final[Mapping[str, Callable[[str], str]]] = {
    "event_id": canonical_uuid,
    "decision_id": canonical_uuid,
    "request_id": canonical_uuid,
    "subject": canonical_subject,
    "subject_prefix": canonical_subject,
}
_VERBATIM: Final = frozenset({"gavel.v1.StreamProposalsRequest"})


def text_forms(request: Descriptor) -> list[tuple[str, Callable[[str], str]]]:
    """Return the fields of a request that have a canonical form, each with the function that brings a text into it."""
    if request.full_name in _VERBATIM:
        return []
    fields = [field for field in request.fields if field.type == field.TYPE_STRING and not field.is_repeated]
    return [(field.name, CANONICAL_FORMS[field.name]) for field in fields if field.name in CANONICAL_FORMS]


def normalize(envelope: Envelope) -> bool:
    """Bring the ids and the subject of an envelope into canonical form. Return whether it has changed."""
    changed = _normalize_uuids(envelope, "event_id", "causation_id")
    subject = canonical_subject(envelope.subject)
    if subject != envelope.subject:
        envelope.subject = subject
        changed = True
    match envelope.WhichOneof("payload"):
        case "fact":
            changed = _normalize_uuids(envelope.fact, "decision_id") or changed
        case "proposal":
            for reference in envelope.proposal.based_on_events:
                changed = _normalize_uuids(reference, "event_id") or changed
        case "observation":
            changed = _normalize_uuids(envelope.observation, "evidence_ref") or changed
        case "execution":
            changed = _normalize_uuids(envelope.execution, "decision_id") or changed
        case "tool_call":
            changed = _normalize_uuids(envelope.tool_call, "decision_id") or changed
        case "agent_diagnostic" if envelope.agent_diagnostic.HasField("graph_transition"):
            transition = envelope.agent_diagnostic.graph_transition
            for event_ids in (transition.input_event_ids, transition.output_event_ids):
                canonical = [canonical_uuid(event_id) for event_id in event_ids]
                if canonical != event_ids:
                    event_ids[:] = canonical
                    changed = True
    return changed


def _normalize_uuids(message: Message, *fields: str) -> bool:
    changed = False
    for field in fields:
        sent = getattr(message, field)
        canonical = canonical_uuid(sent)
        if canonical != sent:
            setattr(message, field, canonical)
            changed = True
    return changed

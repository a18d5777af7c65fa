"""Verification of the evidence that a trace pins: results of tools, readings of them, and evidence of decisions.

The bytes come from the caller's store, by their hash. The locations in events are not opened: producers choose them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gavel.v1.envelope_pb2 import Envelope

from gavel_client.evidence.store import EvidenceAlteredError, EvidenceMissingError, EvidenceStore

VERIFIED: Final = "verified"
ALTERED: Final = "altered"
MISSING: Final = "missing"
# No event says that the bytes were kept: the log has their hash only.
HASH_ONLY: Final = "hash only"

# Returns the events of the trace that an event belongs to, given its sequence number.
TraceOf = Callable[[int], Iterable[Envelope]]


@dataclass
class EvidenceCheck:
    """The result of verifying one piece of evidence."""

    hash: str
    """"sha256:" and 64 hex digits."""
    pinned_by: list[str] = field(default_factory=list)
    """The events of the trace that name it, e.g. "tool result 12"."""
    state: str = HASH_ONLY
    """VERIFIED, ALTERED, MISSING or HASH_ONLY."""


def verify_trace(store: EvidenceStore, events: Iterable[Envelope], trace_of: TraceOf) -> list[EvidenceCheck]:
    """Hash again all evidence that the events of a trace pin, in their order. Raises EvidenceError if the store fails.

    A decision may rest on evidence of another trace, which `trace_of` reads.
    """
    checks: dict[str, EvidenceCheck] = {}
    available: set[str] = set()
    elsewhere: dict[str, int] = {}
    for event in events:
        available |= _stored_hashes(event)
        for content_hash, sequence_number in _pinned_hashes(event):
            check = checks.setdefault(content_hash, EvidenceCheck(content_hash))
            check.pinned_by.append(f"{_KINDS[str(event.WhichOneof('payload'))]} {event.sequence_number}")
            elsewhere.setdefault(content_hash, sequence_number)
    for content_hash, check in checks.items():
        sequence_number = elsewhere[content_hash]
        if content_hash not in available and sequence_number:
            for event in trace_of(sequence_number):
                available |= _stored_hashes(event)
        if content_hash in available:
            check.state = _state_of(store, content_hash)
    return list(checks.values())


def _state_of(store: EvidenceStore, content_hash: str) -> str:
    try:
        store.get(content_hash)
    except EvidenceMissingError:
        return MISSING
    except EvidenceAlteredError:
        return ALTERED
    return VERIFIED


def _stored_hashes(event: Envelope) -> set[str]:
    """Return the hash of the bytes that the runtime kept before this TOOL_RESULT, if any."""
    result = event.tool_result
    return {result.evidence_hash or result.content_hash} if result.evidence_uri else set()


def _pinned_hashes(event: Envelope) -> list[tuple[str, int]]:
    """Return the hashes that an event names, each with the sequence number of the event that it comes from; 0: of this trace."""
    match event.WhichOneof("payload"):
        case "tool_result":
            result = event.tool_result
            pins = [(one, 0) for one in dict.fromkeys((result.evidence_hash, result.content_hash))]
        case "observation":
            pins = [(event.observation.evidence_hash, 0)]
        case "decision":
            pins = [(pin.evidence_hash, pin.sequence_number) for pin in event.decision.pinned_facts]
        case _:
            pins = []
    return [pin for pin in pins if pin[0]]


_KINDS: Final = {"tool_result": "tool result", "observation": "observation", "decision": "decision"}

"""Rows of paged tables as bytes, as snapshots hold them: the evidence about a subject, and the readings of a tool result."""

from __future__ import annotations

from gavel.internal.v1 import state_snapshot_pb2
from gavel.internal.v1.state_snapshot_pb2 import Evidence, Readings

from gavel_rules.state.records import Candidate, OutlivingResult
from gavel_rules.values import python_to_value, value_to_python

KeyCandidates = dict[str, tuple[Candidate, ...]]


def newest_number(keys: KeyCandidates) -> int:
    """Return the sequence number of the last event that has changed the evidence about a subject."""
    return max([candidate.sequence_number for candidates in keys.values() for candidate in candidates], default=0)


def pack_evidence(keys: KeyCandidates) -> bytes:
    """Return the evidence about a subject, by fact key, as a serialized Evidence. Equal evidence gives equal bytes."""
    evidence = Evidence()
    for key in sorted(keys):
        row = evidence.keys.add(key=key)
        for candidate in keys[key]:
            row.candidates.append(_encode(candidate))
    return evidence.SerializeToString(deterministic=True)


def unpack_evidence(packed: bytes) -> KeyCandidates:
    """Return the evidence of a serialized Evidence."""
    return {row.key: tuple([_decode(candidate) for candidate in row.candidates]) for row in Evidence.FromString(packed).keys}


def pack_outliving_result(result: OutlivingResult) -> bytes:
    """Return a tool result that has outlived its trace as a serialized Readings. Equal ones give equal bytes."""
    readings = Readings(contradiction=result.contradiction, candidate_count=result.candidate_count)
    for key in sorted(result.readings):
        readings.values.add(key=key, value=result.readings[key])
    return readings.SerializeToString(deterministic=True)


def unpack_outliving_result(packed: bytes) -> OutlivingResult:
    """Return the tool result of a serialized Readings."""
    readings = Readings.FromString(packed)
    return OutlivingResult({one.key: one.value for one in readings.values}, readings.contradiction, readings.candidate_count, 0)


def _encode(candidate: Candidate) -> state_snapshot_pb2.Candidate:
    return state_snapshot_pb2.Candidate(
        pin=candidate.pin,
        sequence_number=candidate.sequence_number,
        category=candidate.category,
        trust_tier=candidate.trust_tier,
        source=candidate.source,
        value=python_to_value(candidate.value),
        claimed_at_ms=candidate.claimed_at_ms,
        stated_at_ms=candidate.stated_at_ms,
        aged_from_ms=candidate.aged_from_ms,
        max_age_ms=candidate.max_age_ms,
        evidence_ref=candidate.evidence_ref,
        confidence=candidate.confidence,
        producer_type=candidate.producer_type,
        producer_id=candidate.producer_id,
        producer_version=candidate.producer_version,
        observed_from=candidate.observed_from,
        derivation_rule_id=candidate.derivation_rule_id,
        derivation_rule_version=candidate.derivation_rule_version,
    )


def _decode(candidate: state_snapshot_pb2.Candidate) -> Candidate:
    return Candidate(
        candidate.pin,
        candidate.sequence_number,
        candidate.category,
        candidate.trust_tier,
        candidate.source,
        value_to_python(candidate.value),
        candidate.claimed_at_ms,
        candidate.stated_at_ms,
        candidate.aged_from_ms,
        candidate.max_age_ms,
        candidate.evidence_ref,
        candidate.confidence,
        candidate.producer_type,  # type: ignore[arg-type]  # an int of the closed enum
        candidate.producer_id,
        candidate.producer_version,
        candidate.observed_from,  # type: ignore[arg-type]
        candidate.derivation_rule_id,
        candidate.derivation_rule_version,
    )

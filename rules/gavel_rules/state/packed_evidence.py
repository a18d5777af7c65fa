"""The evidence about subjects as bytes, as snapshots hold it, and pages of it beside a state.

Most subjects of a bus are never needed again. A state therefore holds in its own tables only the evidence that has changed since a
snapshot. The rest is in pages: a table of that snapshot, which never changes and is given to the state. Which evidence is in pages
is no part of the state: it changes neither a decision nor a digest (docs/decisions/0063-evidence-in-pages.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gavel.internal.v1 import state_snapshot_pb2
from gavel.internal.v1.state_snapshot_pb2 import Evidence

from gavel_rules.state.records import Candidate
from gavel_rules.values import python_to_value, value_to_python

KeyCandidates = dict[str, tuple[Candidate, ...]]


class EvidencePages:
    """Packed evidence as it was after one event. It never changes.

    `find` returns the packed evidence about a subject, or None. `rows` yields all of it by subject, sorted.
    """

    def __init__(self, sequence_number: int, find: Callable[[str], bytes | None], rows: Callable[[], Iterator[tuple[str, bytes]]]) -> None:
        self.sequence_number: Final = sequence_number
        self.find: Final = find
        self.rows: Final = rows


def pages_in_memory(sequence_number: int, packed: Mapping[str, bytes]) -> EvidencePages:
    """Return pages of packed evidence by subject, which must not change any more."""
    return EvidencePages(sequence_number, packed.get, lambda: iter(sorted(packed.items())))


def evidence_rows(evidence: Mapping[str, KeyCandidates], pages: EvidencePages | None) -> Iterator[tuple[str, KeyCandidates | bytes]]:
    """Yield all evidence by subject, sorted: that in `evidence` as it is, and that of other subjects in the pages, packed."""
    subjects = iter(sorted(evidence))
    subject = next(subjects, None)
    if pages is not None:
        for paged_subject, packed in pages.rows():
            while subject is not None and subject < paged_subject:
                yield subject, evidence[subject]
                subject = next(subjects, None)
            if subject == paged_subject:
                continue  # it has changed since
            yield paged_subject, packed
    while subject is not None:
        yield subject, evidence[subject]
        subject = next(subjects, None)


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

"""Verification of the evidence of a trace: every pin of it, wherever the bytes come from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from gavel.v1.decision_pb2 import Decision, PinnedFact
from gavel.v1.envelope_pb2 import Envelope
from gavel.v1.observation_pb2 import Observation
from gavel.v1.tool_pb2 import ToolResult
from gavel_client.evidence import EvidenceStore
from gavel_client.evidence.verification import ALTERED, HASH_ONLY, MISSING, VERIFIED, EvidenceCheck, verify_trace

from tests.support.hashes import sha256_of


@pytest.fixture
def store(tmp_path: Path) -> EvidenceStore:
    """An empty store."""
    return EvidenceStore(str(tmp_path))


def result(number: int, content_hash: str, uri: str = "", evidence_hash: str = "") -> Envelope:
    """Return a TOOL_RESULT."""
    return Envelope(
        sequence_number=number, tool_result=ToolResult(content_hash=content_hash, evidence_uri=uri, evidence_hash=evidence_hash)
    )


def no_trace(sequence_number: int) -> Iterable[Envelope]:
    """Fail: the trace needs no other one."""
    raise AssertionError(sequence_number)


def test_pins_of_a_trace(store: EvidenceStore, tmp_path: Path) -> None:
    """Results, observations and decisions that name the same bytes are one check; each has its state."""
    intact, uri = store.put(b"1")
    altered, _ = store.put(b"2")
    (tmp_path / "sha256" / altered[7:9] / altered[9:]).write_bytes(b"other")
    missing, bare = sha256_of("3"), sha256_of("4")
    events = [
        result(1, intact, uri, intact),
        Envelope(sequence_number=2, observation=Observation(evidence_hash=intact)),
        result(3, altered, uri),
        result(4, missing, uri),
        result(5, bare),
        Envelope(sequence_number=6, decision=Decision(pinned_facts=[PinnedFact(evidence_hash=intact, sequence_number=2), PinnedFact()])),
    ]
    assert [
        EvidenceCheck(intact, ["tool result 1", "observation 2", "decision 6"], VERIFIED),
        EvidenceCheck(altered, ["tool result 3"], ALTERED),
        EvidenceCheck(missing, ["tool result 4"], MISSING),
        EvidenceCheck(bare, ["tool result 5"], HASH_ONLY),
    ] == verify_trace(store, events, no_trace)


def test_a_failure_has_evidence_without_a_result(store: EvidenceStore) -> None:
    """The evidence of a failure is that of its code and message."""
    intact, uri = store.put(b'{"code":"E_PATH"}')
    assert [EvidenceCheck(intact, ["tool result 1"], VERIFIED)] == verify_trace(store, [result(1, "", uri, intact)], no_trace)


@pytest.mark.parametrize(("is_kept", "state"), [(True, VERIFIED), (False, MISSING)])
def test_evidence_of_another_trace(store: EvidenceStore, is_kept: bool, state: str) -> None:
    """Evidence that a decision pins from another trace is found by the events of that trace."""
    content_hash = store.put(b"1")[0] if is_kept else sha256_of("1")
    decision = Envelope(sequence_number=9, decision=Decision(pinned_facts=[PinnedFact(evidence_hash=content_hash, sequence_number=4)]))
    elsewhere = {4: [result(3, content_hash, "file:///evidence")]}
    assert [EvidenceCheck(content_hash, ["decision 9"], state)] == verify_trace(store, [decision], elsewhere.__getitem__)

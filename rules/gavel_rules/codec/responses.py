"""Responses assembled from the log's own bytes.

An event is serialized once, when it is appended. An Envelope with its chain hash is the stored bytes followed by that one field, and a
response is a tag, a length and those bytes. Responses to SubmitProposal, ResolveReview and RevokeDecision have the same field.
"""

from __future__ import annotations

from typing import Final

from gavel.v1.arbitration_service_pb2 import (
    BatchSubmitProposalsResponse,
    ProposalResult,
    ResolveReviewResponse,
    StreamProposalsResponse,
    SubmitProposalResponse,
)
from gavel.v1.envelope_pb2 import Envelope

from gavel_rules.codec.fields import Field

_CHAIN_HASH: Final = Field(Envelope, "chain_hash").prefix(32)
_DECISION: Final = Field(SubmitProposalResponse, "decision")
_VOTE: Final = Field(ResolveReviewResponse, "vote")
_RESULT: Final = Field(BatchSubmitProposalsResponse, "results")
_RESULT_DECISION: Final = Field(ProposalResult, "decision")
_RESULT_ERROR: Final = Field(ProposalResult, "error")
_STREAM_REQUEST_ID: Final = Field(StreamProposalsResponse, "request_id")
_STREAM_DECISION: Final = Field(StreamProposalsResponse, "decision")
_STREAM_ERROR: Final = Field(StreamProposalsResponse, "error")


def with_chain_hash(envelope: bytes, chain_hash: bytes) -> bytes:
    """Return an encoded Envelope with its chain hash, which has 32 bytes."""
    return envelope + _CHAIN_HASH + chain_hash


def encode_decision_response(envelope: bytes, chain_hash: bytes) -> bytes:
    """Encode the response that consists of a decision."""
    return _DECISION.prefix(len(envelope) + len(_CHAIN_HASH) + len(chain_hash)) + envelope + _CHAIN_HASH + chain_hash


def encode_vote_response(envelope: bytes, chain_hash: bytes) -> bytes:
    """Encode the ResolveReviewResponse with a vote or comment that did not end its review."""
    return _VOTE.prefix(len(envelope) + len(_CHAIN_HASH) + len(chain_hash)) + envelope + _CHAIN_HASH + chain_hash


def encode_stream_decision(request_id: str, envelope: bytes, chain_hash: bytes) -> bytes:
    """Encode a StreamProposalsResponse with a decision."""
    length = len(envelope) + len(_CHAIN_HASH) + len(chain_hash)
    return _STREAM_REQUEST_ID.text(request_id) + _STREAM_DECISION.prefix(length) + envelope + _CHAIN_HASH + chain_hash


def encode_stream_error(request_id: str, status: bytes) -> bytes:
    """Encode a StreamProposalsResponse with an encoded google.rpc.Status."""
    return _STREAM_REQUEST_ID.text(request_id) + _STREAM_ERROR.content(status)


def encode_decision_result(envelope: bytes, chain_hash: bytes) -> tuple[bytes, ...]:
    """Encode one result of a BatchSubmitProposalsResponse: a decision. Return the parts for the caller to join."""
    length = len(envelope) + len(_CHAIN_HASH) + len(chain_hash)
    prefix = _RESULT_DECISION.prefix(length)
    return (_RESULT.prefix(len(prefix) + length), prefix, envelope, _CHAIN_HASH, chain_hash)


def encode_error_result(status: bytes) -> tuple[bytes, ...]:
    """Encode one result of a BatchSubmitProposalsResponse: an encoded google.rpc.Status. Return the parts for the caller to join."""
    prefix = _RESULT_ERROR.prefix(len(status))
    return (_RESULT.prefix(len(prefix) + len(status)), prefix, status)

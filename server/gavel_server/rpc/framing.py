"""Responses from the log's records, which are never parsed or serialized again (`gavel_rules.codec.responses`)."""

from __future__ import annotations

from collections.abc import Iterable

from gavel_rules.codec.responses import (
    encode_decision_response,
    encode_decision_result,
    encode_error_result,
    encode_stream_decision,
    encode_stream_error,
    encode_vote_response,
)

from gavel_server.log import Record


def decision_response(record: Record) -> bytes:
    """Return the response that consists of a decision: to SubmitProposal, ResolveReview and RevokeDecision."""
    return encode_decision_response(record.envelope, record.chain_hash)


def vote_response(record: Record) -> bytes:
    """Return the ResolveReviewResponse with a vote or comment that did not end its review."""
    return encode_vote_response(record.envelope, record.chain_hash)


def stream_response(request_id: str, result: Record | bytes) -> bytes:
    """Return a StreamProposalsResponse with a decision, or with an encoded google.rpc.Status."""
    if isinstance(result, Record):
        return encode_stream_decision(request_id, result.envelope, result.chain_hash)
    return encode_stream_error(request_id, result)


def batch_response(results: Iterable[Record | bytes]) -> bytes:
    """Return a BatchSubmitProposalsResponse with a decision or an encoded google.rpc.Status for each proposal."""
    parts: list[bytes] = []
    for result in results:
        if isinstance(result, Record):
            parts.extend(encode_decision_result(result.envelope, result.chain_hash))
        else:
            parts.extend(encode_error_result(result))
    return b"".join(parts)

"""Fragments of a Decision that many decisions share.

Arbitration concatenates fragments and merges them into the decision in one call: docs/performance.md#fragments. Which fragments a
decision consists of is arbitration's choice; nothing here decides.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gavel.v1.decision_pb2 import Decision, RetryHint

from gavel_rules.codec.fields import FRAGMENT_CACHE_MAX, Field

# Merge fragments into a decision.
merge_fragments: Final = Decision.MergeFromString

_ARBITER_VERSION: Final = Field(Decision, "arbiter_version")
_EVALUATED_AT: Final = Field(Decision, "evaluated_at")
_VALID_UNTIL: Final = Field(Decision, "valid_until")
_RETRY_HINT: Final = Field(Decision, "retry_hint")
_RETRYABLE: Final = Field(RetryHint, "retryable")


@lru_cache(FRAGMENT_CACHE_MAX)
def encode_evaluation(arbiter_version: int, evaluated_at_ms: int) -> bytes:
    """Encode the arbiter version that evaluates a decision, and the time."""
    return _ARBITER_VERSION.number(arbiter_version) + _EVALUATED_AT.timestamp(evaluated_at_ms)


def encode_valid_until(valid_until_ms: int) -> bytes:
    """Encode the end of an approval's validity."""
    return _VALID_UNTIL.timestamp(valid_until_ms)


def encode_retryable(retryable: bool) -> bytes:
    """Encode a retry hint. It overrides `retryable` of one that the decision already has."""
    # Encoded by hand: protobuf leaves out a field that has its default.
    return _RETRY_HINT.content(_RETRYABLE.number(int(retryable)))

"""Decision fragments parse as decisions built field by field."""

from __future__ import annotations

from gavel.v1.decision_pb2 import Decision, RetryHint
from gavel_rules.codec.decision_fragments import (
    encode_evaluation,
    encode_retryable,
    encode_valid_until,
    merge_fragments,
)
from gavel_rules.events.timestamps import TIME_MS_MAX, timestamp
from hypothesis import given
from hypothesis import strategies as st

TIMES_MS = st.integers(0, TIME_MS_MAX)


@given(st.integers(0, 2**31 - 1), TIMES_MS)
def test_evaluation(arbiter_version: int, at_ms: int) -> None:
    """The evaluation sets arbiter_version and evaluated_at."""
    expected = Decision(arbiter_version=arbiter_version, evaluated_at=timestamp(at_ms))
    assert expected == Decision.FromString(encode_evaluation(arbiter_version, at_ms))


@given(TIMES_MS, TIMES_MS)
def test_valid_until(before_ms: int, at_ms: int) -> None:
    """The end of validity replaces an earlier one."""
    decision = Decision(valid_until=timestamp(before_ms))
    merge_fragments(decision, encode_valid_until(at_ms))
    assert Decision(valid_until=timestamp(at_ms)) == decision


def test_retryable() -> None:
    """A retry hint overrides one that the decision already has."""
    decision = Decision(reason_code="R", retry_hint=RetryHint(retryable=True, retry_after_ms=7))
    merge_fragments(decision, encode_retryable(False))
    assert Decision(reason_code="R", retry_hint=RetryHint(retryable=False, retry_after_ms=7)) == decision
    merge_fragments(decision, encode_retryable(True))
    assert decision.retry_hint.retryable

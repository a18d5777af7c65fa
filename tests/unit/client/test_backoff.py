"""Pauses between tries."""

from __future__ import annotations

import random

import grpc
import pytest
from gavel.v1.decision_pb2 import RetryPolicy
from gavel_client.backoff import Backoff, may_heal
from gavel_client.errors import GavelError
from gavel_client.executor import retry_pause_ms
from hypothesis import given
from hypothesis import strategies as st


@given(failures=st.integers(1, 10_000), advice=st.none() | st.integers(0, 100_000), seed=st.integers())
def test_pause_is_bounded(failures: int, advice: int | None, seed: int) -> None:
    """A pause is never shorter than the server's advice, and beyond it never longer than the cap nor shorter than half of it."""
    backoff = Backoff(initial_ms=100, multiplier=2.0, maximum_ms=5_000, random_source=random.Random(seed))
    own = min(5_000, 100 * 2 ** min(failures - 1, 20))
    beyond = backoff.pause_ms(failures, advice) - (advice or 0)
    assert own / 2 <= beyond <= own


def test_pauses_are_reproducible() -> None:
    """The same random source gives the same pauses."""
    first, second = (Backoff(random_source=random.Random(7)) for _ in range(2))
    assert [first.pause_ms(n) for n in range(1, 9)] == [second.pause_ms(n) for n in range(1, 9)]


@pytest.mark.parametrize(
    ("code", "reason", "retry_after_ms", "heals"),
    [
        (grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", None, True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", None, True),
        (grpc.StatusCode.CANCELLED, "", None, True),
        (grpc.StatusCode.UNKNOWN, "", None, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", 5, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "COMPILE_LIMIT_EXCEEDED", None, False),
        (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_STATE", None, False),
        (grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED", None, False),
        (grpc.StatusCode.INTERNAL, "INTERNAL", None, False),
        (grpc.StatusCode.INTERNAL, "", None, True),
    ],
)
def test_what_may_heal(code: grpc.StatusCode, reason: str, retry_after_ms: int | None, heals: bool) -> None:
    """A server that is away, slow or busy and a connection that broke are worth waiting for; a judgement or a bug is not."""
    assert heals is may_heal(GavelError(code, reason, "", (), retry_after_ms))


@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        (RetryPolicy(backoff_initial_ms=100, backoff_multiplier=2.0, backoff_max_ms=350), [100, 200, 350, 350]),
        (RetryPolicy(backoff_initial_ms=100, backoff_multiplier=1.0, backoff_max_ms=1000), [100, 100, 100, 100]),
        (RetryPolicy(backoff_initial_ms=500, backoff_multiplier=3.0, backoff_max_ms=100), [100, 100, 100, 100]),
        (RetryPolicy(), [0, 0, 0, 0]),
        (RetryPolicy(backoff_initial_ms=1, backoff_multiplier=1e308, backoff_max_ms=9), [1, 9, 9, 9]),
    ],
)
def test_retry_pause_follows_the_policy(policy: RetryPolicy, pauses: list[int]) -> None:
    """The pause before another attempt is the decision's: initial * multiplier^(n-1), capped; nothing of the runtime's own."""
    assert pauses == [retry_pause_ms(policy, attempt) for attempt in range(1, 5)]

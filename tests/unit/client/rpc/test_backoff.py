"""Backoff, transient errors, and the pause before another attempt."""

from __future__ import annotations

import asyncio
import hashlib
import random

import grpc
import pytest
from gavel.v1.decision_pb2 import RetryPolicy
from gavel_client.executor.executor import retry_pause_ms
from gavel_client.rpc.backoff import Backoff, is_transient, retry
from gavel_client.rpc.errors import GavelError
from hypothesis import given
from hypothesis import strategies as st

DECISION_ID = "0190a1b2-0000-8000-8000-000000000001"


@given(failures=st.integers(1, 10_000), advice=st.none() | st.integers(0, 100_000), seed=st.integers())
def test_pause_is_bounded(failures: int, advice: int | None, seed: int) -> None:
    """A pause exceeds the server's advice by at least half of the capped backoff and at most all of it."""
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
def test_transient_errors(code: grpc.StatusCode, reason: str, retry_after_ms: int | None, heals: bool) -> None:
    """Errors of an unavailable, slow or busy server and of a broken connection are transient; refusals and bugs are not."""
    assert heals is is_transient(GavelError(code, reason, "", (), retry_after_ms))


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
    """The pause before attempt n+1 is initial * multiplier^(n-1), capped; jitter leaves at least half of it."""
    actual = [retry_pause_ms(policy, attempt, DECISION_ID) for attempt in range(1, 5)]
    assert [True] * 4 == [most / 2 <= pause <= most for pause, most in zip(actual, pauses, strict=True)]


def test_retry_jitter_is_reproducible() -> None:
    """The jitter depends on the decision and the attempt only, as documented."""
    policy = RetryPolicy(backoff_initial_ms=1000, backoff_multiplier=1.0, backoff_max_ms=1000)
    drawn = int(hashlib.sha256(f"{DECISION_ID}:1".encode()).hexdigest()[:16], 16) / 2**64
    assert 1000 * (1 - drawn / 2) == retry_pause_ms(policy, 1, DECISION_ID)
    assert 50 == len({retry_pause_ms(policy, attempt, f"{number}") for attempt in (1, 2) for number in range(25)})


def test_retry() -> None:
    """A call is tried again after each transient error, with the pauses of the backoff, until the server refuses it."""
    unavailable = GavelError(grpc.StatusCode.UNAVAILABLE, "LOG_UNAVAILABLE", "", (), 7)
    refusal = GavelError(grpc.StatusCode.PERMISSION_DENIED, "CATEGORY_NOT_ALLOWED", "", (), None)
    errors = [unavailable, unavailable, refusal]
    pauses: list[tuple[GavelError, float]] = []

    async def call() -> None:
        raise errors.pop(0)

    async def pause(error: GavelError, pause_ms: float) -> None:
        pauses.append((error, pause_ms))

    with pytest.raises(GavelError) as failure:
        asyncio.run(retry(call, Backoff(random_source=random.Random(7)), pause))
    assert refusal is failure.value
    backoff = Backoff(random_source=random.Random(7))
    assert [(unavailable, backoff.pause_ms(1, 7)), (unavailable, backoff.pause_ms(2, 7))] == pauses

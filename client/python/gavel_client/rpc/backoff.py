"""Retries: exponential backoff with a cap and jitter, and the errors that a retry may mend.

A pause is never shorter than the server's advice. The client retries a call until its deadline; the executor and the fact
derivation reactor retry for ever, because no caller could handle their failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeVar

import grpc

from gavel_client.rpc.errors import GavelError

# The server is unreachable, slow or restarting, or the connection broke during a call.
TRANSIENT_CODES: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
)
# Interval at which a reader asks again for a bus that nobody has written to.
BUS_POLL_MS: Final = 1_000
# A stream that lasts this long was accepted by the server.
ACCEPTED_SECONDS: Final = 10.0

Response = TypeVar("Response")


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff: pauses grow by `multiplier` from `initial_ms` to `maximum_ms`; jitter removes up to half of each.

    `random_source` is the only source of randomness; tests pass a seeded one.
    """

    initial_ms: int = 100
    multiplier: float = 2.0
    maximum_ms: int = 1_000
    random_source: random.Random = field(default_factory=random.Random)

    def pause_ms(self, failures: int, retry_after_ms: int | None = None) -> float:
        """Return the pause after `failures` consecutive failures (from 1), in milliseconds.

        The server's advice `retry_after_ms` is added to the jittered pause, so that clients refused together do not return
        together.
        """
        # The bound of the exponent prevents an overflow of the float; `maximum_ms` applies much earlier.
        pause = min(self.maximum_ms, self.initial_ms * self.multiplier ** min(failures - 1, 64))
        return (retry_after_ms or 0) + pause * self.random_source.uniform(0.5, 1.0)


def is_transient(error: GavelError) -> bool:
    """Report whether a retry may succeed: the server is unreachable, busy or slow, and did not refuse the request itself."""
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # Without advice, a limit on the message or on the compiler is exceeded, and stays so.
        return error.retry_after_ms is not None
    if error.code is grpc.StatusCode.INTERNAL:
        # With a reason it is a bug of the server, without one a fault of the transport.
        return not error.reason
    return error.code in TRANSIENT_CODES


class AcceptedStream:
    """Tells whether the server ever accepted the credentials of a stream.

    If it did and they have expired, a stream with new credentials continues. If it never did, a retry is useless. Construct an object
    when the stream is opened, and call `note_response` for each response.
    """

    def __init__(self) -> None:
        self._opened_at: Final = time.monotonic()
        self._has_response = False

    def note_response(self) -> None:
        """Note that the server has answered."""
        self._has_response = True

    def may_continue(self, error: GavelError) -> bool:
        """Report whether the stream may be opened again after an error. Its provider is then asked for a token again."""
        if error.code is not grpc.StatusCode.UNAUTHENTICATED:
            return is_transient(error)
        # A quiet stream has no response, but the server refuses credentials at once.
        return self._has_response or time.monotonic() - self._opened_at >= ACCEPTED_SECONDS


def is_unopened_bus(error: GavelError) -> bool:
    """Report whether a read failed because nobody has written to the bus yet. The first write opens it."""
    return error.reason == "BUS_NOT_FOUND"


async def sleep_before_retry(error: GavelError, pause_ms: float) -> None:
    """Sleep for `pause_ms`; the default of `retry`."""
    await asyncio.sleep(pause_ms / 1000)


async def retry(
    call: Callable[[], Awaitable[Response]],
    backoff: Backoff,
    pause: Callable[[GavelError, float], Awaitable[None]] = sleep_before_retry,
) -> Response:
    """Call the server until it accepts or refuses the call. Raises GavelError for a refusal.

    `pause` receives the error and the milliseconds to wait before each further try; it ends the tries by raising.
    """
    failures = 0
    while True:
        try:
            return await try_once(call)
        except GavelError as error:
            if not is_transient(error):
                raise
            failures += 1
            await pause(error, backoff.pause_ms(failures, error.retry_after_ms))


# Whether the caller of a call retries it, and the client therefore does not.
_IS_RETRIED: ContextVar[bool] = ContextVar("is_retried", default=False)


async def try_once(call: Callable[[], Awaitable[Response]]) -> Response:
    """Make a call of the client without its retries, for a caller that retries and must see every failure."""
    token = _IS_RETRIED.set(True)
    try:
        return await call()
    finally:
        _IS_RETRIED.reset(token)


# The call may not have reached the server. A stopping server cancels calls, as a closed client does.
LOST_CALL_CODES: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


class RetryBudget:
    """The deadline and the number of tries of one call; `tries_max` None: as many as the deadline allows.

    `timeout_ms` covers all tries and the pauses between them. A call is retried after RESOURCE_EXHAUSTED with advice, because the
    server took no action. It is retried after UNAVAILABLE, or CANCELLED by a stopping server, only if it is `repeatable`: the
    first try may have taken effect.
    """

    def __init__(self, timeout_ms: int, repeatable: bool, backoff: Backoff, tries_max: int | None = None) -> None:
        self._ends_at = time.monotonic() + timeout_ms / 1000
        self._repeatable = repeatable
        self._backoff = backoff
        self._tries_max = 1 if _IS_RETRIED.get() else tries_max
        self._failures = 0

    def timeout_seconds(self) -> float:
        """Return the time left for the next try, in seconds."""
        return max(0.0, self._ends_at - time.monotonic())

    def pause_seconds(self, rpc_error: grpc.RpcError, *, closed: bool = False) -> float:
        """Return the pause before the next try, in seconds. Raises GavelError if no retry follows, or if the client is `closed`."""
        error = GavelError.from_rpc_error(rpc_error, None if closed else self._ends_at)
        self._failures += 1
        lost = error.code in LOST_CALL_CODES and self._repeatable
        no_effect = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after_ms is not None
        pause_seconds = self._backoff.pause_ms(self._failures, error.retry_after_ms) / 1000
        if closed or not (lost or no_effect) or self._failures == self._tries_max or pause_seconds >= self.timeout_seconds():
            raise error from rpc_error
        return pause_seconds

"""How long to wait before trying again: exponential, capped, with jitter, and never less than the server asked for.

The client uses it within a call's deadline; the executor and the fact derivation reactor, which have nobody to report
a failure to, use it for ever.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Final

import grpc

from gavel_client.errors import GavelError

# The server is away, slow or restarting, or the connection broke in the middle of a call.
TRANSIENT_CODES: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN}
)


@dataclass(frozen=True)
class Backoff:
    """Pauses that grow by `multiplier` from `initial_ms` up to `maximum_ms`; jitter takes away up to half of each.

    `random_source` is the only source of chance; tests pass a seeded one.
    """

    initial_ms: int = 100
    multiplier: float = 2.0
    maximum_ms: int = 5_000
    random_source: random.Random = field(default_factory=random.Random)

    def pause_ms(self, failures: int, retry_after_ms: int | None = None) -> float:
        """Return the pause after the `failures`-th failure in a row (from 1), in milliseconds.

        With the server's advice the pause is that and the jittered pause on top, so that those who were sent away
        together do not come back together.
        """
        # The exponent is bounded only so that a float cannot overflow; the cap is reached long before.
        pause = min(self.maximum_ms, self.initial_ms * self.multiplier ** min(failures - 1, 64))
        return (retry_after_ms or 0) + pause * self.random_source.uniform(0.5, 1.0)


def may_heal(error: GavelError) -> bool:
    """Whether waiting may help: the server is away, busy or slow, and did not judge the request itself."""
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # Without advice it is a limit of the message or the compiler, which stays exceeded.
        return error.retry_after_ms is not None
    if error.code is grpc.StatusCode.INTERNAL:
        # With a reason it is a bug of the server's, without one a fault of the transport.
        return not error.reason
    return error.code in TRANSIENT_CODES


# The call got lost. CANCELLED is a server's doing that stops, unless the client was closed meanwhile.
UNHEARD_CODES: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
# How often one call is tried in all.
TRIES_MAX: Final = 5


class Tries:
    """The tries of one call: the time that each may take, and whether another one follows a failure.

    The deadline is the whole call's, pauses included. A call is tried again after RESOURCE_EXHAUSTED with advice (the server
    took nothing in), and after UNAVAILABLE, or CANCELLED by a server that stops, only if it is `repeatable`: the first try may
    have had its effect unheard.
    """

    def __init__(self, timeout_ms: int, repeatable: bool, backoff: Backoff) -> None:
        self._ends_at = time.monotonic() + timeout_ms / 1000
        self._repeatable = repeatable
        self._backoff = backoff
        self._failures = 0

    def timeout_s(self) -> float:
        """Return the time left for the next try, in seconds as gRPC wants it."""
        return max(0.0, self._ends_at - time.monotonic())

    def pause_s(self, rpc_error: grpc.RpcError, *, closed: bool = False) -> float:
        """Return the pause before the next try, in seconds. Raises GavelError when there is to be none, as after a `closed` client."""
        error = GavelError.from_rpc_error(rpc_error, None if closed else self._ends_at)
        self._failures += 1
        unheard = error.code in UNHEARD_CODES and self._repeatable
        not_taken_in = error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after_ms is not None
        pause_s = self._backoff.pause_ms(self._failures, error.retry_after_ms) / 1000
        if closed or not (unheard or not_taken_in) or self._failures == TRIES_MAX or pause_s >= self.timeout_s():
            raise error from rpc_error
        return pause_s

"""Quotas: what one caller may use of a server. A caller is an address or, with authentication, a principal (`callers`).

Rates are token buckets: a caller that was quiet may use a second's worth at once. Streams are counted while they are open. A call beyond a
quota is refused before it is decoded, with QuotaFailure and RetryInfo. The module is compiled: every call is charged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from gavel.v1 import error_pb2
from gavel_rules.identity.principal import ANONYMOUS, Principal

from gavel_server.errors import ServiceError
from gavel_server.process import metrics

CALLS_PER_SECOND_DEFAULT: Final = 20_000
BYTES_PER_SECOND_DEFAULT: Final = 256 * 1024 * 1024
STREAMS_DEFAULT: Final = 256
SUBSCRIPTIONS_DEFAULT: Final = 128
# Accounts that are remembered. Beyond that, the oldest ones without open streams are forgotten, which gives their callers full buckets.
ACCOUNTS_MAX: Final = 4_096
STREAM_RETRY_AFTER_MS: Final = 1_000
# How long a refused caller counts as throttled, and how many GetStatus shows.
THROTTLED_SECONDS: Final = 60.0
THROTTLED_CALLERS_MAX: Final = 100


@dataclass(frozen=True)
class QuotaLimits:
    """The quotas of each caller."""

    calls_per_second: int = CALLS_PER_SECOND_DEFAULT
    bytes_per_second: int = BYTES_PER_SECOND_DEFAULT
    streams: int = STREAMS_DEFAULT
    subscriptions: int = SUBSCRIPTIONS_DEFAULT


@dataclass(frozen=True)
class ThrottledAccount:
    """A caller that was refused for a quota in the last THROTTLED_SECONDS. `since_seconds` is the time since its last refusal."""

    caller: str
    quota: str
    refused: int
    since_seconds: float
    principal: Principal = ANONYMOUS


class Account:
    """The account of one caller: the rest of its rates, and its open streams."""

    def __init__(self, calls: float, size_bytes: float, now: float) -> None:
        self.calls = calls
        self.size_bytes = size_bytes
        self.now = now
        self.streams = 0
        self.subscriptions = 0
        self.refused = 0
        self.refused_at = -THROTTLED_SECONDS
        self.refused_quota = ""
        self.principal = ANONYMOUS  # of the last refusal


class Quotas:
    """The quotas of all callers of a server. `monotonic` returns seconds."""

    def __init__(self, limits: QuotaLimits, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._limits: Final = limits
        self._calls_max: Final = float(limits.calls_per_second)
        self._bytes_max: Final = float(limits.bytes_per_second)
        self._monotonic: Final = monotonic
        self._accounts: Final[dict[str, Account]] = {}
        self.calls = 0
        """How many calls have been charged or refused."""

    def charge(self, caller: str, size_bytes: int, principal: Principal = ANONYMOUS) -> None:
        """Charge a call and its request's bytes to a caller. Raises ServiceError QUOTA_EXCEEDED.

        The last call may overdraw the bytes: requests have a size limit of their own.
        """
        self.calls += 1
        now = self._monotonic()
        account = self._accounts.get(caller)
        if account is None:
            account = self._open(caller, now)
        elapsed = now - account.now
        if elapsed > 0.0:
            account.now = now
            account.calls = min(self._calls_max, account.calls + elapsed * self._calls_max)
            account.size_bytes = min(self._bytes_max, account.size_bytes + elapsed * self._bytes_max)
        if account.calls < 1.0:
            account.principal = principal
            raise self._refusal(caller, account, "calls_per_second", self._limits.calls_per_second, 1.0 - account.calls, self._calls_max)
        if account.size_bytes <= 0.0:
            account.principal = principal
            raise self._refusal(caller, account, "bytes_per_second", self._limits.bytes_per_second, -account.size_bytes, self._bytes_max)
        account.calls -= 1.0
        account.size_bytes -= size_bytes

    @contextmanager
    def stream(self, caller: str, *, is_subscription: bool, principal: Principal = ANONYMOUS) -> Iterator[None]:
        """Count a stream of a caller while the block runs. Raises ServiceError QUOTA_EXCEEDED."""
        account = self._accounts.get(caller)
        if account is None:
            account = self._open(caller, self._monotonic())
        if account.streams >= self._limits.streams:
            account.principal = principal
            raise self._refusal(caller, account, "streams", self._limits.streams, 0.0, 0.0)
        if is_subscription and account.subscriptions >= self._limits.subscriptions:
            account.principal = principal
            raise self._refusal(caller, account, "subscriptions", self._limits.subscriptions, 0.0, 0.0)
        account.streams += 1
        account.subscriptions += is_subscription
        try:
            yield
        finally:
            account.streams -= 1
            account.subscriptions -= is_subscription

    def throttled_accounts(self, is_visible: Callable[[Principal], bool] | None = None) -> list[ThrottledAccount]:
        """Return the callers that were refused lately, the most refused first. `is_visible` selects them by principal; default: all."""
        now = self._monotonic()
        accounts = [
            ThrottledAccount(caller, account.refused_quota, account.refused, now - account.refused_at, account.principal)
            for caller, account in self._accounts.items()
            if now - account.refused_at < THROTTLED_SECONDS and (is_visible is None or is_visible(account.principal))
        ]
        return sorted(accounts, key=lambda one: (-one.refused, one.caller))[:THROTTLED_CALLERS_MAX]

    def _open(self, caller: str, now: float) -> Account:
        accounts = self._accounts
        if len(accounts) >= ACCOUNTS_MAX:
            idle = [name for name, account in accounts.items() if not account.streams]
            for name in idle[: ACCOUNTS_MAX // 4]:
                del accounts[name]
        account = accounts[caller] = Account(self._calls_max, self._bytes_max, now)
        return account

    def _refusal(self, caller: str, account: Account, quota: str, limit: int, deficit: float, rate: float) -> ServiceError:
        """Return the error for a call; `deficit` is what the bucket lacks and `rate` how much it gains in a second."""
        now = self._monotonic()
        if now - account.refused_at >= THROTTLED_SECONDS:
            account.refused = 0
        account.refused += 1
        account.refused_at = now
        account.refused_quota = quota
        metrics.QUOTA_REFUSALS.labels(quota).inc()
        retry_after_ms = int(deficit / rate * 1000.0) + 1 if rate else STREAM_RETRY_AFTER_MS
        return ServiceError(
            error_pb2.ERROR_REASON_QUOTA_EXCEEDED,
            f"the caller has used up its quota {quota} of {limit}; try again later",
            retry_after_ms=retry_after_ms,
            quota=(caller if account.principal.is_anonymous else account.principal.name, f"{quota} is limited to {limit}"),
        )

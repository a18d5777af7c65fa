"""The attempts of one call: the next provider, the pause before it, and the past attempts.

Each provider is asked again after a failure that another attempt may mend, up to `attempts_max` times. Then, or after another failure,
the next one is asked. All happens within `deadline_ms`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gavel_client.llm.errors import LLMFailedError, LLMProviderError, UnknownProviderEvent, error_fields
from gavel_client.llm.models import LLMProviderMeta, LLMResponse
from gavel_client.llm.provider import LLMProvider
from gavel_client.rpc.backoff import Backoff

ATTEMPTS_MAX_DEFAULT: Final = 2
ATTEMPT_TIMEOUT_MS_DEFAULT: Final = 120_000
DEADLINE_MS_DEFAULT: Final = 300_000
UNKNOWN_EVENT: Final = "unknown_event"
CANCELLED: Final = "cancelled"
INTERNAL: Final = "internal"


@dataclass(frozen=True)
class RetryPolicy:
    """Limits of one call: attempts with each provider, the time of an attempt and of the call, and the pauses between attempts."""

    attempts_max: int = ATTEMPTS_MAX_DEFAULT
    attempt_timeout_ms: int = ATTEMPT_TIMEOUT_MS_DEFAULT
    deadline_ms: int = DEADLINE_MS_DEFAULT
    backoff: Backoff = field(default_factory=lambda: Backoff(500, 2.0, 8_000))

    def __post_init__(self) -> None:
        for name in ("attempts_max", "attempt_timeout_ms", "deadline_ms"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be positive")


class Attempts:
    """The attempts of one call, the past ones in `provider_meta`."""

    def __init__(self, providers: Sequence[LLMProvider], policy: RetryPolicy) -> None:
        self._providers = providers
        self._policy = policy
        self._index = 0
        self._failures = 0
        self._is_open = False
        self._started_at = self._attempt_started_at = time.monotonic()
        self.provider_meta: tuple[LLMProviderMeta, ...] = ()

    @property
    def provider(self) -> LLMProvider:
        """The provider to ask now."""
        return self._providers[self._index]

    @property
    def duration_ms(self) -> int:
        """Time since the start of the call."""
        return int((time.monotonic() - self._started_at) * 1000)

    def begin(self) -> int:
        """Begin an attempt; return its timeout in milliseconds."""
        self._attempt_started_at = time.monotonic()
        self._is_open = True
        return max(1, min(self._policy.attempt_timeout_ms, self._policy.deadline_ms - self.duration_ms))

    def succeed(self, response: LLMResponse) -> LLMResponse:
        """Return the response with all attempts."""
        [meta] = response.provider_meta
        attempt = {**meta.extra, "attempt": len(self.provider_meta) + 1}
        self.provider_meta = (*self.provider_meta, dataclasses.replace(meta, extra=attempt))
        return dataclasses.replace(response, provider_meta=self.provider_meta)

    def abandon(self, error: BaseException) -> None:
        """Note that the open attempt, if there is one, ended by an error and is the last one."""
        if self._is_open:
            self.end(error)

    def end(self, error: BaseException) -> None:
        """Note that the attempt ended by an error."""
        self._is_open = False
        if isinstance(error, LLMProviderError):
            fields = error_fields(error)
        elif isinstance(error, UnknownProviderEvent):
            fields = {"code": UNKNOWN_EVENT, "message": str(error)}
        elif isinstance(error, Exception):
            fields = {"code": INTERNAL, "message": f"{type(error).__name__} in the client"}
        else:
            fields = {"code": CANCELLED, "message": "the caller left before the answer was complete"}
        latency_ms = (time.monotonic() - self._attempt_started_at) * 1000
        extra = {"attempt": len(self.provider_meta) + 1, "error": fields}
        self.provider_meta = (*self.provider_meta, LLMProviderMeta(self.provider.name, self.provider.model, latency_ms, extra))

    async def fail(self, error: LLMProviderError) -> None:
        """Note a failed attempt, and pause before the next one. Raises LLMFailedError if there is none."""
        self.end(error)
        self._failures += 1
        left_ms = self._policy.deadline_ms - self.duration_ms
        pause_ms = self._policy.backoff.pause_ms(self._failures, error.retry_after_ms)
        if error.is_retryable and self._failures < self._policy.attempts_max and pause_ms < left_ms:
            await asyncio.sleep(pause_ms / 1000)
            return
        if self._index + 1 == len(self._providers) or left_ms <= 0:
            raise LLMFailedError(self.provider_meta) from error
        self._index += 1
        self._failures = 0
